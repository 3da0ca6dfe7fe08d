// Package crash_test injects faults into calls of the plugin and its files. Afterwards the next
// calls must find a consistent store, or repair it: no address is assigned twice, none is leaked,
// and none is lost after its result was printed.
//
//	crash_test.go    every file-system call fails, or the process is killed at it
//	kills_test.go    calls of concurrent workers are killed at random
//	states_test.go   every state that a power cut may leave
//	damage_test.go   corrupted, truncated and foreign files
//	full_test.go     disks that are full
//	wipe_test.go     directories that are removed while pods run
//	migrate_test.go  calls of upstream's host-local in between
//	misc_test.go     removed lock files, callers that have ended
package crash_test

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

func TestMain(m *testing.M) { lab.Main(m) }

// fixture is a node with a pool of six addresses, and the pod "db-0", which has a window.
type fixture struct {
	*testNode
	pod      lab.Pod
	last     *lab.Sandbox // the pod's last sandbox, or nil
	original string       // the address that the pod has, or that is held for it
	reserved string       // the address that the Kruise fork has reserved for db-1, or ""
}

// scenario is a state and the call into which a fault is injected.
type scenario struct {
	verb    string
	setup   func(w *fixture)
	sandbox func(w *fixture) *lab.Sandbox
}

var scenarios = map[string]scenario{
	"ADD of the first pod": {"ADD", func(*fixture) {}, next},
	"ADD of another pod":   {"ADD", func(w *fixture) { w.other("web-0"); w.other("web-1") }, next},
	"ADD of a returned pod": {"ADD", func(w *fixture) {
		w.other("web-0")
		w.bind()
		w.release()
	}, next},
	"ADD after a container ended without a DEL": {"ADD", func(w *fixture) {
		w.other("web-0")
		w.bind()
		w.remove(w.last)
	}, next},
	"ADD of the first pod after the Kruise fork": {"ADD", (*fixture).reserveByFork, next},
	"DEL": {"DEL", func(w *fixture) { w.other("web-0"); w.bind() }, current},
	"repeated DEL": {"DEL", func(w *fixture) {
		w.other("web-0")
		w.bind()
		w.release()
	}, current},
}

// reserveByFork writes what the Kruise fork of host-local leaves of three pods that are away, the
// last of which has an address of another network.
func (w *fixture) reserveByFork() {
	w.Helper()
	w.original, w.reserved = w.pool[3], w.pool[4]
	for i, addr := range []string{w.original, w.reserved, "192.0.2.2"} {
		w.write(filepath.Join([]string{"net", "net", "other"}[i], addr), fmt.Sprintf("fork-%d\r\neth0", i))
		w.write(fmt.Sprintf("reserved/default/db-%d", i), fmt.Sprintf(`{"containerId": "fork-%d", "ifName": "eth0",
			"IPConf": {"version": "4", "address": "%s/16"}, "duration": 60, "releaseTime": %q}`,
			i, addr, time.Now().Format(time.RFC3339)))
	}
}

// write writes a file below the directory of the networks.
func (w *fixture) write(name, content string) {
	w.Helper()
	path := filepath.Join(w.node.NetworksDir(), name)
	must.Succeed(w, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)))
}

// checkReserved checks that the next calls have imported what the Kruise fork has reserved, and
// that no later import can do so again. The reservation of the other network stays.
func (w *fixture) checkReserved() {
	w.Helper()
	if got := w.other("db-1"); got != w.reserved {
		w.Errorf("db-1 got %s, and the Kruise fork had reserved %s", got, w.reserved) // I2
	}
	var left []string
	entries, err := os.ReadDir(filepath.Join(w.node.NetworksDir(), "reserved", "default"))
	must.Succeed(w, err)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if !slices.Equal(left, []string{"db-2"}) {
		w.Errorf("%v are left in the fork's directory, want db-2", left)
	}
}

// remove removes a sandbox's network namespace.
func (w *fixture) remove(sandbox *lab.Sandbox) {
	w.forget(sandbox)
	sandbox.RemoveKeepingInode()
}

func next(w *fixture) *lab.Sandbox    { return w.node.Sandbox(w.pod.Recreated()) }
func current(w *fixture) *lab.Sandbox { return w.last }

// TestEveryCall injects a fault into each file-system call of each scenario in turn; the short
// form, into every third one, from one of the first three on.
func TestEveryCall(t *testing.T) {
	step := howMany(3, 1)
	rng := lab.Rand(t)
	for _, name := range slices.Sorted(maps.Keys(scenarios)) {
		s := scenarios[name]
		for _, fault := range []string{"EIO", "KILL"} {
			first := 1 + rng.IntN(step)
			t.Run(name+"/"+fault, func(t *testing.T) {
				t.Parallel()
				for n := first; ; n += step {
					if n > 1000 {
						t.Fatal("more than 1000 file-system calls")
					}
					if !s.run(t, fault, n) {
						if n < 4 || fault == "EIO" && n < 20 {
							t.Errorf("less than %d file-system calls, want more: the injection does not count them", n)
						}
						break
					}
				}
			})
		}
	}
}

// stdoutFault is the prefix of reply.Harmed for a fault in a write to stdout, after which no error
// can be printed.
var stdoutFault = fmt.Sprintf("system call %d on fd 1,", unix.SYS_WRITE)

// run runs the scenario with a fault at the n-th file-system call and reports whether there was
// one.
func (s scenario) run(t *testing.T, fault string, n int) (injected bool) {
	t.Run(fmt.Sprint(n), func(t *testing.T) {
		w := &fixture{testNode: newTestNode(t, 6), pod: lab.NewPod("default", "db-0", "10")}
		s.setup(w)
		sandbox := s.sandbox(w)

		call := sandbox.IPAMCall(w.net, s.verb)
		call.Harm = &lab.Harm{At: n, Kill: fault == "KILL", Every: os.Getenv("LONG") != ""}
		reply := w.track(sandbox, s.verb, func() lab.Reply { return w.node.Call(call) })
		injected = reply.Harmed != ""
		if fault == "EIO" && w.reserved != "" && reply.Stderr != "" {
			w.original, w.reserved = "", "" // it has warned that it cannot read or move what the fork has reserved
		}
		defer func() {
			if t.Failed() {
				t.Logf("%s at call %d, %s: exit status %d, stdout %q, stderr %q",
					fault, n, reply.Harmed, reply.Exit, reply.Stdout, reply.Stderr)
			}
		}()

		if reply.Exit > 0 && reply.Err == nil && !strings.HasPrefix(reply.Harmed, stdoutFault) {
			t.Error("neither a result nor a CNI error on stdout")
		}
		if !injected && reply.Exit != 0 {
			t.Error("the call failed without a fault")
		}
		w.checkInvariants(s.verb, sandbox, reply)
	})
	return injected
}

// checkInvariants continues after the call like a runtime and a kubelet, and checks the invariants
// (docs/design.md, "Invariants").
func (w *fixture) checkInvariants(verb string, sandbox *lab.Sandbox, reply lab.Reply) {
	w.Helper()
	w.node.Check()
	printed := ""
	if verb == "ADD" && reply.Exit == 0 {
		printed = reply.Addresses()[0]
		if ls := w.bound(sandbox); len(ls) != 1 || ls[0].Address != printed {
			w.Errorf("%s was printed, but the store has %+v", printed, ls) // I4
		}
	}

	if other := w.other("other-0"); other == w.original || other == printed {
		w.Errorf("another pod got %s", other) // I1, I2
	}
	if w.reserved != "" {
		w.checkReserved()
	}
	// With any result of the call, the runtime calls DEL in the end, and the pod returns.
	if r := w.call(sandbox, "DEL"); r.Exit != 0 {
		w.Errorf("the next DEL failed: %+v", r)
	}
	w.remove(sandbox)
	if ls := w.bound(sandbox); len(ls) != 0 {
		w.Errorf("bound after its DEL: %+v", ls) // I3
	}
	original := cmp.Or(w.original, printed)
	w.bind()
	if original != "" && w.original != original {
		w.Errorf("the pod came back with %s, want %s", w.original, original) // I2
	}
	w.release()

	// No address is leaked: when the holds have expired, all can be assigned.
	w.node.Clock += time.Hour
	for i := range 6 - len(w.node.Leases()) {
		w.other(fmt.Sprint("filler-", i))
	}
	w.node.Check()
}

// other calls ADD for another pod and returns its address.
func (w *fixture) other(name string) string {
	w.Helper()
	_, addr := w.start(lab.NewPod("default", name, ""))
	return addr
}

// bind calls ADD for the next sandbox of db-0.
func (w *fixture) bind() {
	w.Helper()
	w.last, w.original = w.start(w.pod)
}

func (w *fixture) release() {
	w.Helper()
	if r := w.call(w.last, "DEL"); r.Exit != 0 {
		w.Fatalf("DEL: %+v", r)
	}
	w.remove(w.last)
}

// bound returns the leases that are bound to a sandbox.
func (w *fixture) bound(sandbox *lab.Sandbox) []lab.Lease {
	w.Helper()
	return slices.DeleteFunc(w.node.Leases("--state", "bound"),
		func(l lab.Lease) bool { return l.Container != sandbox.ID })
}
