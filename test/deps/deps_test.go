package deps

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/leasehold-cni/leasehold"

// layers assigns each package to a layer. A package may only import packages of smaller layers, so
// that dependencies have one direction. As an exception, the packages of layer 0 may import
// pkg/lease, whose types all packages use.
//
// A name with a trailing slash includes all packages below it. A package must be added to the table
// when it is created.
var layers = map[string]int{
	"pkg/lease":  0, // the state machine
	"pkg/pool":   0, // addresses
	"pkg/policy": 0, // annotations and configuration of users

	"pkg/files":  1, // small files and directories
	"pkg/daemon": 1, // command line, log, loops and HTTP servers of agent and manager

	"pkg/record": 1, // records of the store

	"pkg/rundir":   2, // the run directory
	"pkg/boltfile": 2, // the file of the store
	"pkg/host":     2, // the kernel, and whether holders live

	"pkg/store":     3, // the disk
	"pkg/hostlocal": 3, // host-local's files

	"pkg/importer": 4, // what the host shows
	"pkg/cniconf":  4, // CNI configurations that runtimes load

	"pkg/operation": 5, // one use case in one transaction

	"pkg/ipam":     6, // the CNI verbs
	"pkg/maintain": 6, // what the agent and operators do to leases

	"pkg/install":   7, // the plugin on a node
	"pkg/cniplugin": 7, // the interface to the runtime
	"pkg/cli":       7, // what the commands of operators share
	"pkg/agent":     7, // the tasks of the node agent
	"pkg/agent/use": 7, // whether leasehold is in use

	"pkg/cli/node":        8,  // the commands of a node
	"pkg/cli/cluster":     8,  // the commands of a cluster
	"pkg/kube/":           8,  // API types
	"pkg/kube":            9,  // what both programs use of Kubernetes
	"pkg/agent/retention": 10, // what the tasks of the agent share that use Kubernetes
	"pkg/manager/control": 10, // what the parts of the manager share

	"pkg/agent/windows": 11, // the tasks of the node agent that use Kubernetes
	"pkg/agent/holds":   11,
	"pkg/agent/events":  11,
	"pkg/agent/publish": 11,

	"pkg/manager/nodepools":          11, // what agents should read
	"pkg/manager/pin":                11, // the pin
	"pkg/manager/persistentpodstate": 11, // PersistentPodState
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
		"pkg/agent", "pkg/agent/use"}, "k8s.io/",
		"only pkg/kube, the packages of larger layers and the programs use Kubernetes"},
}

// golist is the output of `go list` for a package.
type golist struct {
	ImportPath string
	GoFiles    []string
	Imports    []string
	Deps       []string
	Standard   bool
}

// packages returns the module's packages, without their tests, and which dependencies are of the
// standard library.
func packages(t *testing.T) (ours []golist, standard map[string]bool) {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,GoFiles,Imports,Deps,Standard", "./pkg/...",
		"./plugins/...", "./cmd/...")
	cmd.Dir = "../.."
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, &stderr)
	}
	standard = map[string]bool{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p golist
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return ours, standard
		} else if err != nil {
			t.Fatal(err)
		}
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
	return path == name || strings.HasSuffix(name, "/") && strings.HasPrefix(path, name)
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
		return "has no layer; add it to the table"
	}
	if isProgram(from) {
		return ""
	}
	below, found := layerOf(from)
	switch {
	case !found:
		return "its importer has no layer; add it to the table"
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
			t.Errorf("%s has no layer: add it to the table", from)
		}
		for _, path := range p.Imports {
			if to, ok := within(path); ok {
				if why := breach(from, to); why != "" {
					t.Errorf("%s imports %s: %s", from, to, why)
				}
			}
		}
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
	for _, name := range names {
		if covers(name, path) {
			return true
		}
	}
	return false
}
