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

// layers is a statement of policy: what a package may know of. An import
// points to a smaller layer, so that data moves one way: words, types,
// decision, record (DESIGN 8). pkg/lease is the language that all of them
// speak, and layer 0 may import it as well.
//
// DESIGN counts adopt and ipam as one layer. They are two here, for every use
// case goes through what adopt finds, and adopt knows of no use case.
//
// A name that ends in a slash stands for everything below it. A package that is
// not here has no place yet: decide its layer before it is written.
var layers = map[string]int{
	"pkg/lease":  0, // the state machine
	"pkg/pool":   0, // addresses
	"pkg/policy": 0, // the words users write
	"pkg/signal": 0, // that there is news

	"pkg/store":    1, // the disk
	"pkg/sandbox":  1, // the kernel
	"pkg/announce": 1, // ARP and ND

	"pkg/adopt": 2, // what the host shows
	"pkg/env":   2, // what mains read from their surroundings

	"pkg/ipam": 3, // the use cases

	"pkg/cniplugin": 4, // the runtime's border
	"pkg/cli":       4, // the operator's border
	"pkg/agent":     4, // the node loops

	"pkg/kube/": 5, // Kubernetes
}

// speech is what layer 0 may import of itself.
const speech = "pkg/lease"

// programs stand above all layers: they wire.
var programs = []string{"plugins/", "cmd/"}

// strangers are what a program, or a part of the house, must not link, and why.
var strangers = []struct {
	in     []string // of which these packages are free, with all that they link
	prefix string
	why    string
}{
	{[]string{"plugins/", "pkg/cniplugin"}, "k8s.io/", "the plugin starts once per pod: client-go costs 60 MB and 7 ms (STYLE B2)"},
	{[]string{"plugins/", "pkg/cniplugin"}, "sigs.k8s.io/", "as k8s.io"},
	{[]string{"plugins/", "pkg/cniplugin"}, "github.com/prometheus/", "nobody scrapes a process of 5 ms: the agent exports the store's counters"},
	{[]string{"plugins/", "pkg/cniplugin"}, "github.com/spf13/", "the plugin has no command line"},
	{[]string{"plugins/", "pkg/cniplugin"}, "github.com/mdlayher/", "ARP and ND are the agent's"},
	{[]string{"plugins/", "pkg/cniplugin"}, module + "/pkg/announce", "ARP and ND are the agent's"},
	{[]string{"plugins/", "pkg/cniplugin"}, "github.com/containernetworking/plugins/", "host-local is the oracle of tests, not a part"},
	{[]string{"plugins/", "pkg/cniplugin"}, "net/http", "no verb makes a network call (I7)"},
	{[]string{"plugins/", "pkg/cniplugin"}, "crypto/tls", "no verb makes a network call (I7)"},
	{[]string{"pkg/store", "pkg/sandbox", "pkg/adopt", "pkg/ipam", "pkg/env", "pkg/cli", "pkg/agent"}, "k8s.io/", "only pkg/kube and mains know Kubernetes"},
}

// golist is what `go list` says of a package.
type golist struct {
	ImportPath string
	Imports    []string
	Deps       []string
	Standard   bool
}

// packages lists the module's packages and, among their Deps, all they link.
// Tests of theirs do not count.
func packages(t *testing.T) (ours []golist, standard map[string]bool) {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Imports,Deps,Standard", "./pkg/...", "./plugins/...", "./cmd/...")
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

// within is a path inside the module; false for what is not ours.
func within(path string) (string, bool) { return strings.CutPrefix(path, module+"/") }

// covers tells whether a name of a table stands for the package.
func covers(name, path string) bool {
	return path == name || strings.HasSuffix(name, "/") && strings.HasPrefix(path, name)
}

func isProgram(path string) bool {
	for _, p := range programs {
		if covers(p, path) {
			return true
		}
	}
	return false
}

func layerOf(path string) (int, bool) {
	for name, layer := range layers {
		if covers(name, path) {
			return layer, true
		}
	}
	return 0, false
}

// breach says what is wrong with an import of one of our packages by another;
// "" if nothing is.
func breach(from, to string) string {
	if isProgram(to) {
		return "nobody imports a program"
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
	case above < below, below == 0 && to == speech && from != speech:
		return ""
	case covers("pkg/kube/", from) && covers("pkg/kube/", to):
		return "" // rooms of one house
	}
	return "an import points to a smaller layer"
}

func TestEveryImportPointsDown(t *testing.T) {
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

// impure is what layer 0 must not name itself, though fmt and others link it.
var impure = []string{"os", "os/exec", "io/fs", "net", "net/http", "syscall", "log", "log/slog", "math/rand", "math/rand/v2"}

func TestLayer0IsPure(t *testing.T) {
	ours, standard := packages(t)
	for _, p := range ours {
		from, _ := within(p.ImportPath)
		if layer, found := layerOf(from); !found || layer != 0 {
			continue
		}
		for _, path := range p.Deps {
			if _, ok := within(path); !ok && !standard[path] {
				t.Errorf("%s links %s: layer 0 is the standard library", from, path)
			}
		}
		for _, path := range p.Imports {
			if slices.Contains(impure, path) {
				t.Errorf("%s imports %s: layer 0 is pure", from, path)
			}
		}
	}
}

func TestNoStrangers(t *testing.T) {
	ours, _ := packages(t)
	for _, p := range ours {
		from, _ := within(p.ImportPath)
		for _, s := range strangers {
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

func coveredBy(names []string, path string) bool {
	for _, name := range names {
		if covers(name, path) {
			return true
		}
	}
	return false
}

// TestTheTableCanFail holds the rules against imports that never were.
func TestTheTableCanFail(t *testing.T) {
	tests := []struct {
		story, from, to string
		allowed         bool
	}{
		{"a border uses the use cases", "pkg/cniplugin", "pkg/ipam", true},
		{"policy speaks of leases", "pkg/policy", "pkg/lease", true},
		{"a main wires", "cmd/leasectl", "pkg/cli", true},
		{"publishing uses the agent's types", "pkg/kube/publish", "pkg/agent", true},
		{"two rooms of Kubernetes", "pkg/kube/pin", "pkg/kube/topology", true},
		{"the machine reads no policy", "pkg/lease", "pkg/policy", false},
		{"pools know no policies", "pkg/pool", "pkg/policy", false},
		{"the store decides nothing", "pkg/store", "pkg/ipam", false},
		{"the kernel is not the disk's", "pkg/store", "pkg/sandbox", false},
		{"use cases go through what the host shows", "pkg/ipam", "pkg/adopt", true},
		{"and not the other way", "pkg/adopt", "pkg/ipam", false},
		{"use cases print nothing", "pkg/ipam", "pkg/cniplugin", false},
		{"the agent does not know Kubernetes", "pkg/agent", "pkg/kube/publish", false},
		{"an unknown package", "pkg/store", "pkg/utils", false},
		{"an unknown importer", "pkg/utils", "pkg/lease", false},
		{"a program is no library", "pkg/cli", "cmd/leasectl", false},
	}
	for _, tt := range tests {
		if why := breach(tt.from, tt.to); (why == "") != tt.allowed {
			t.Errorf("%s: %s imports %s: %q, want allowed: %t", tt.story, tt.from, tt.to, why, tt.allowed)
		}
	}
}
