package deps

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

const module = "github.com/leasehold-cni/leasehold"

// layers and sentences have the layer and the description of each package, by the table in
// docs/architecture.md, "Packages". A package may only import packages of smaller layers, so that
// dependencies have one direction. As an exception, the packages of layer 0 may import pkg/lease,
// whose types all packages use.
//
// A name with a trailing slash includes all packages below it. A package must be added to the table
// when it is created.
var layers, sentences = table()

func table() (layers map[string]int, sentences map[string]string) {
	layers, sentences = map[string]int{}, map[string]string{}
	b, _ := os.ReadFile("../../docs/architecture.md") // without it no package has a layer
	for _, row := range regexp.MustCompile(`(?m)^    (\d+) +(pkg/\S+) +(.+)$`).FindAllStringSubmatch(string(b), -1) {
		name := strings.TrimSuffix(row[2], "...")
		layers[name], _ = strconv.Atoi(row[1])
		sentences[name], _, _ = strings.Cut(row[3], ". ")
	}
	return layers, sentences
}

// shared is the package that layer 0 may import too.
const shared = "pkg/lease"

// programs are above all layers.
var programs = []string{"plugins/", "cmd/"}

// forbidden lists the packages that others must not link, with the reason.
var forbidden = []struct {
	in     []string // packages that must not depend on prefix, directly or indirectly
	prefix string
	why    string
}{
	{[]string{"plugins/", "pkg/cniplugin"}, "k8s.io/",
		"the plugin starts for every pod, and client-go costs 60 MB and 7 ms"},
	{[]string{"plugins/", "pkg/cniplugin"}, "sigs.k8s.io/", "see k8s.io"},
	{[]string{"plugins/", "pkg/cniplugin"}, "github.com/prometheus/",
		"a process of 5 ms cannot be scraped: the agent exports its metrics"},
	{[]string{"plugins/", "pkg/cniplugin"}, "github.com/spf13/", "the plugin has no command line"},
	{[]string{"plugins/", "pkg/cniplugin"}, "github.com/mdlayher/", "the agent sends ARP and ND"},
	{[]string{"plugins/", "pkg/cniplugin"}, "github.com/containernetworking/plugins/",
		"host-local is used by tests only"},
	{[]string{"plugins/", "pkg/cniplugin"}, "net/http", "the plugin uses no network"},
	{[]string{"plugins/", "pkg/cniplugin"}, "crypto/", "it makes each start of the plugin longer"},
	{[]string{"plugins/", "pkg/cniplugin"}, module + "/pkg/cniconf", "the runtime has read the configuration"},
	{[]string{"pkg/daemon", "pkg/record", "pkg/rundir", "pkg/boltfile", "pkg/store", "pkg/host",
		"pkg/hostlocal", "pkg/cniconf",
		"pkg/importer", "pkg/operation", "pkg/ipam", "pkg/maintain", "pkg/cli", "pkg/cli/",
		"pkg/agent"}, "k8s.io/",
		"only pkg/kube, the packages of larger layers and the programs use Kubernetes"},
}

// golist is the output of `go list` for a package.
type golist struct {
	ImportPath string
	Doc        string // the first sentence
	GoFiles    []string
	Imports    []string
	Deps       []string
	Standard   bool
}

// packages returns the module's packages, without their tests, and which dependencies are of the
// standard library.
func packages(t *testing.T) (ours []golist, standard map[string]bool) {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Doc,GoFiles,Imports,Deps,Standard", "./pkg/...",
		"./plugins/...", "./cmd/...")
	cmd.Dir = "../.."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	must.Succeed(t, err, "go list", &stderr)
	standard = map[string]bool{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p golist
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			return ours, standard
		}
		must.Succeed(t, err)
		standard[p.ImportPath] = p.Standard
		if strings.HasPrefix(p.ImportPath, module+"/") {
			ours = append(ours, p)
		}
	}
}

// within returns a path relative to the module. It reports false for other modules.
func within(path string) (string, bool) { return strings.CutPrefix(path, module+"/") }

// covers reports whether a name in a table includes the package.
func covers(name, path string) bool {
	return path == name || strings.HasSuffix(name, "/") && strings.HasPrefix(path+"/", name)
}

func isProgram(path string) bool { return coveredBy(programs, path) }

func layerOf(path string) (int, bool) {
	for name, layer := range layers {
		if covers(name, path) {
			return layer, true
		}
	}
	return 0, false
}

// breach returns why an import is not allowed, "" if it is.
func breach(from, to string) string {
	if isProgram(to) {
		return "a program must not be imported"
	}
	above, found := layerOf(to)
	if !found {
		return "has no layer; add it to docs/architecture.md"
	}
	if isProgram(from) {
		return ""
	}
	below, found := layerOf(from)
	switch {
	case !found:
		return "its importer has no layer; add it to docs/architecture.md"
	case above < below, below == 0 && to == shared && from != shared:
		return ""
	}
	return "only smaller layers may be imported"
}

func TestImportsFollowLayers(t *testing.T) {
	ours, _ := packages(t)
	for _, p := range ours {
		from, _ := within(p.ImportPath)
		if _, found := layerOf(from); !found && !isProgram(from) {
			t.Errorf("%s has no layer: add it to docs/architecture.md", from)
		}
		for _, path := range p.Imports {
			if to, ok := within(path); ok {
				check.Equal(t, breach(from, to), "", from, "imports", to)
			}
		}
	}
}

// TestFirstSentences verifies that the first sentence of a package has its description.
func TestFirstSentences(t *testing.T) {
	ours, _ := packages(t)
	for _, p := range ours {
		name, _ := within(p.ImportPath)
		check.Contains(t, p.Doc, sentences[name], "the first sentence of", name, "and docs/architecture.md")
	}
}

// impure lists what layer 0 must not import directly, although fmt and others link it.
var impure = []string{"os", "os/exec", "io/fs", "net", "net/http", "syscall", "log", "log/slog", "math/rand",
	"math/rand/v2"}

func TestLayer0IsPure(t *testing.T) {
	ours, standard := packages(t)
	for _, p := range ours {
		from, _ := within(p.ImportPath)
		if layer, found := layerOf(from); !found || layer != 0 {
			continue
		}
		for _, path := range p.Deps {
			if _, ok := within(path); !ok && !standard[path] {
				t.Errorf("%s links %s: layer 0 may only link the standard library", from, path)
			}
		}
		for _, path := range p.Imports {
			if slices.Contains(impure, path) {
				t.Errorf("%s imports %s: layer 0 must be pure", from, path)
			}
		}
	}
}

func TestForbiddenDependencies(t *testing.T) {
	ours, _ := packages(t)
	for _, p := range ours {
		from, _ := within(p.ImportPath)
		for _, s := range forbidden {
			if !coveredBy(s.in, from) {
				continue
			}
			for _, path := range p.Deps {
				if strings.HasPrefix(path, s.prefix) {
					t.Errorf("%s links %s: %s", from, path, s.why)
				}
			}
		}
	}
}

// TestPersistentPodStateCouldBeDeleted verifies that nothing but the manager's program imports the
// feature.
func TestPersistentPodStateCouldBeDeleted(t *testing.T) {
	const feature, types = "pkg/manager/persistentpodstate", "pkg/kube/apis/apps/v1beta1"
	ours, _ := packages(t)
	for _, p := range ours {
		from, _ := within(p.ImportPath)
		for _, path := range p.Imports {
			to, _ := within(path)
			if to == types && from != feature || to == feature && from != "cmd/leasehold-manager" {
				t.Errorf("%s imports %s", from, to)
			}
		}
	}
}

func coveredBy(names []string, path string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return covers(name, path) })
}
