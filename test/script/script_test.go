// Package script_test runs the scripts of testdata with the real binaries.
//
// In addition to testscript's commands a script can use:
//
//	sandbox <name> <namespace/pod> [window]     creates a container ID, in $<name>, and a network namespace, at
//	                                            $<name>_NETNS, for a pod
//	remove <name>                               removes the network namespace
//	address <name> <address/length>             puts an address on the interface eth0 of the sandbox, of a subnet that
//	                                            no other script has: they would import it
//	[!] cni <verb> <name> <file> [KEY=VALUE...] calls the plugin, or the program host-local, for a sandbox, with
//	                                            the configuration in the file
//	clock <duration>                            advances the clock
//	reboot                                      changes the boot ID
//	seen                                        records the namespaces of the test in the store, as ADD does
//	healthy                                     fails unless leasectl doctor finds nothing
//	[!] repair <reason> [flag...]               runs the commands that leasectl doctor prints for a finding
//	decide <reason> [flag...]                   prints what there is to decide about a finding that has no repair
//	damage                                      removes an index of the store
//	format <number>                             changes the format of the store
//
// KEY=VALUE replaces a variable of the environment; {4096} in it stands for 4096 letters. A
// call that fails must print a CNI error, and no call may create files outside the plugin's
// directories.
package script_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

func TestMain(m *testing.M) { lab.Main(m) }

func TestScripts(t *testing.T) { testscript.Run(t, params("testdata")) }

// TestScriptsAlone runs those that see the processes or files of others, one after the other.
func TestScriptsAlone(t *testing.T) {
	scripts, err := filepath.Glob("testdata/alone/*.txtar")
	must.Succeed(t, err)
	for _, script := range scripts {
		t.Run(filepath.Base(script), func(t *testing.T) {
			p := params("")
			p.Files = []string{script}
			testscript.Run(t, p)
		})
	}
}

func params(dir string) testscript.Params {
	return testscript.Params{
		Dir: dir,
		Setup: func(env *testscript.Env) error {
			s := &state{node: lab.NewNode(env.T().(testing.TB)), sandboxes: map[string]*lab.Sandbox{}}
			env.Values[stateKey] = s
			env.Setenv("PATH", filepath.Dir(lab.Bin("leasectl"))+":"+env.Getenv("PATH"))
			for _, variable := range s.node.Environ() {
				name, value, _ := strings.Cut(variable, "=")
				env.Setenv(name, value)
			}
			env.Setenv("NETWORKS", s.node.NetworksDir())
			env.Setenv("LEASEHOLD", lab.Bin("leasehold"))
			env.Setenv("BIN", filepath.Join(s.node.Dir, "bin"))
			return nil
		},
		Cmds: commands(),
	}
}

// commands returns the commands by their names. What is in brackets may be left out, dots stand for
// any number of arguments, and only a command with an exclamation mark may be expected to fail.
func commands() map[string]func(*testscript.TestScript, bool, []string) {
	all := map[string]func(*testscript.TestScript, bool, []string){}
	for usage, run := range map[string]func(*testscript.TestScript, bool, []string){
		"sandbox <name> <namespace/pod> [window] [reservation-name]": sandbox,
		"remove <name>":                                  remove,
		"address <sandbox> <address/length>":             address,
		"[!] cni <verb> <sandbox> <file> [KEY=VALUE...]": cni,
		"clock <duration>":                               clock,
		"reboot":                                         reboot,
		"seen":                                           seen,
		"healthy [flag...]":                              healthy,
		"[!] repair <reason> [flag...]":                  repair,
		"decide <reason> [flag...]":                      decide,
		"damage":                                         damage,
		"format <number>":                                format,
	} {
		words := strings.Fields(strings.TrimPrefix(usage, "[!] "))
		all[words[0]] = func(ts *testscript.TestScript, neg bool, args []string) {
			tooMany := len(args) >= len(words) && !strings.Contains(usage, "...")
			if neg && !strings.HasPrefix(usage, "[!]") || len(args) < strings.Count(usage, "<") || tooMany {
				ts.Fatalf("usage: %s", usage)
			}
			run(ts, neg, args)
		}
	}
	return all
}

// state is shared by the commands of one script.
type state struct {
	node      *lab.Node
	sandboxes map[string]*lab.Sandbox
}

const stateKey = "state"

func stateOf(ts *testscript.TestScript) *state { return ts.Value(stateKey).(*state) }

func sandbox(ts *testscript.TestScript, neg bool, args []string) {
	s := stateOf(ts)
	namespace, name, _ := strings.Cut(args[1], "/")
	window := ""
	if len(args) > 2 {
		window = args[2]
	}
	pod := lab.NewPod(namespace, name, window)
	if len(args) > 3 {
		pod.Annotations["leasehold.dev/reserve-as"] = args[3]
	}
	sb := s.node.Sandbox(pod)
	s.sandboxes[args[0]] = sb
	ts.Setenv(args[0], sb.ID)
	ts.Setenv(args[0]+"_NETNS", sb.NetNS)
}

func remove(ts *testscript.TestScript, neg bool, args []string) {
	stateOf(ts).sandboxes[args[0]].RemoveKeepingInode()
}

func address(ts *testscript.TestScript, neg bool, args []string) {
	ts.Check(stateOf(ts).sandboxes[args[0]].Address(args[1]))
}

func clock(ts *testscript.TestScript, neg bool, args []string) {
	ahead, err := time.ParseDuration(args[0])
	ts.Check(err)
	stateOf(ts).node.Clock += ahead
	ts.Setenv("LEASEHOLD_CLOCK_OFFSET", stateOf(ts).node.Clock.String())
}

func reboot(ts *testscript.TestScript, neg bool, args []string) {
	stateOf(ts).node.Reboot()
}

func seen(ts *testscript.TestScript, neg bool, args []string) {
	n := stateOf(ts).node
	boot := strings.TrimSpace(ts.ReadFile(filepath.Join(n.Dir, "boot_id")))
	s := store.New(store.Dirs{State: n.StateDir(), Run: n.RunDir()})
	ts.Check(s.Update(context.Background(), func(tx *store.Tx) error {
		return tx.SetNamespaceIDs(host.New("/proc", "").NamespaceIDs(boot))
	}))
}

func cni(ts *testscript.TestScript, neg bool, args []string) {
	s := stateOf(ts)
	sb := s.sandboxes[args[1]]
	if sb == nil {
		ts.Fatalf("no sandbox %q", args[1])
	}
	conf := strings.ReplaceAll(ts.ReadFile(args[2]), "$NETWORKS", s.node.NetworksDir())
	conf = withLetters(conf)
	call := lab.Call{
		Verb: args[0], ContainerID: sb.ID, NetNS: sb.NetNS, IfName: "eth0", Args: sb.CNIArgs(),
		Stdin: annotated(conf, sb),
	}
	if strings.Contains(conf, `"type": "host-local"`) {
		call.Plugin = "host-local"
	}
	variables := map[string]*string{
		"CNI_CONTAINERID": &call.ContainerID, "CNI_NETNS": &call.NetNS, "CNI_IFNAME": &call.IfName,
		"CNI_ARGS": &call.Args,
	}
	for _, arg := range args[3:] {
		name, value, _ := strings.Cut(arg, "=")
		if variables[name] == nil {
			ts.Fatalf("unknown variable %q; want CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME or CNI_ARGS", name)
		}
		*variables[name] = strings.ReplaceAll(withLetters(value), `\n`, "\n")
	}

	before := files(s.node)
	reply := s.node.Call(call)
	io.WriteString(ts.Stdout(), reply.Stdout)
	io.WriteString(ts.Stderr(), reply.Stderr)
	if diff := cmp.Diff(before, files(s.node)); diff != "" {
		ts.Fatalf("files outside the plugin's directories (-before +after):\n%s", diff)
	}
	if strings.Contains(reply.Stderr, "panic") || strings.Contains(reply.Stderr, "goroutine ") {
		ts.Fatalf("the plugin panicked: %s", reply.Stderr)
	}
	switch {
	case neg && reply.Exit == 0:
		ts.Fatalf("%s succeeded: %s", args[0], reply.Stdout)
	case !neg && reply.Exit != 0:
		ts.Fatalf("%s failed: %s", args[0], reply.Stdout)
	case neg:
		checkError(ts, call, reply)
	}
}

// withLetters replaces {n} by n letters.
func withLetters(s string) string {
	return letters.ReplaceAllStringFunc(s, func(n string) string {
		count, _ := strconv.Atoi(strings.Trim(n, "{}"))
		return strings.Repeat("a", count)
	})
}

var letters = regexp.MustCompile(`\{[0-9]+\}`)

// annotated adds the sandbox's annotations to runtimeConfig, as a runtime does. It returns conf
// unchanged if it is not a JSON object, or has a runtimeConfig.
func annotated(conf string, sb *lab.Sandbox) string {
	var object map[string]any
	if json.Unmarshal([]byte(conf), &object) != nil || object == nil ||
		object["runtimeConfig"] != nil || sb.Pod.Annotations == nil {
		return conf
	}
	object["runtimeConfig"] = sb.Capabilities
	out, err := json.Marshal(object)
	if err != nil {
		return conf
	}
	return string(out)
}

// checkError checks the CNI error of a call: users see its text, and no error may have code 3, with
// which a runtime sends no DEL, or libcni's 999 (docs/facts.md, "Runtimes ignore the code of an
// error and show its text").
func checkError(ts *testscript.TestScript, call lab.Call, reply lab.Reply) {
	e := reply.Err
	if e == nil {
		ts.Fatalf("no CNI error on stdout: %q", reply.Stdout)
	}
	if e.Msg == "" || e.Code == 0 || e.Code == 3 || e.Code == 999 {
		ts.Fatalf("CNI error with code %d and msg %q", e.Code, e.Msg)
	}
	if call.Verb == "DEL" && (strings.Contains(e.Error(), "not found") || strings.Contains(e.Error(), "no such file")) {
		ts.Fatalf("containerd takes the error %q for success", e.Error())
	}
}

// files returns the files in the state directories of the machine, except the plugin's own.
func files(node *lab.Node) (all []string) {
	own := []string{node.StateDir(), node.NetworksDir(), filepath.Dir(node.RunDir()), "/run/netns",
		"/run/mount", "/var/lib/rancher"} // of doctor.txtar: mount(8)'s, and a directory of plugins
	for _, root := range []string{"/run", "/var/lib", node.Dir} {
		filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if slices.Contains(own, path) {
				return fs.SkipDir
			}
			if err == nil {
				all = append(all, fmt.Sprint(path, d.Type()))
			}
			return nil
		})
	}
	return all
}
