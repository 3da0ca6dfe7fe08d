// Package crash_test does to the plugin what nodes do to it. Whatever happened, the next calls must find a store that is
// whole, or make it so: no address twice, none lost, nothing forgotten whose result was printed.
//
//	crash_test.go    every file-system call fails, or is the last one
//	storm_test.go    kills at any moment, many workers at once
//	states_test.go   every state that a power cut may leave
//	damage_test.go   flipped, cut off and foreign files
//	full_test.go     disks that are full or read-only
//	wipe_test.go     directories removed while pods run
//	migrate_test.go  the real host-local before, after and in between
//	odds_test.go     clocks, versions, locks taken away, callers that have gone
package crash_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/lab"
)

func TestMain(m *testing.M) { lab.Main(m) }

// A world is a node in the state that a story begins with.
type world struct {
	*testing.T
	node *lab.Node
	net  *lab.Network
	pod  lab.Pod      // "db-0", which asks for a window
	last *lab.Sandbox // its last sandbox, if it ever had one
	home string       // and the address that it has, or that is held for it
}

// A story is a state and the call that comes to harm in it.
type story struct {
	verb  string
	begin func(w *world)
	who   func(w *world) *lab.Sandbox
}

var stories = map[string]story{
	"ADD of the first pod": {"ADD", func(*world) {}, next},
	"ADD of another pod":   {"ADD", func(w *world) { w.start("web-0"); w.start("web-1") }, next},
	"ADD of a pod that comes back": {"ADD", func(w *world) {
		w.start("web-0")
		w.bind()
		w.release()
	}, next},
	"ADD in the place of a dead container": {"ADD", func(w *world) {
		w.start("web-0")
		w.bind()
		w.remove(w.last)
	}, next},
	"DEL": {"DEL", func(w *world) { w.start("web-0"); w.bind() }, current},
	"DEL for the second time": {"DEL", func(w *world) {
		w.start("web-0")
		w.bind()
		w.release()
	}, current},
}

// remove takes a sandbox's network namespace away. The kernel may not give its number out again before the test has ended:
// the nodes of other tests, whose processes the plugin sees, are not in its store.
func (w *world) remove(sandbox *lab.Sandbox) {
	if number, err := os.Open(sandbox.NetNS); err == nil {
		w.Cleanup(func() { number.Close() })
	}
	sandbox.Remove()
}

func next(w *world) *lab.Sandbox    { return w.node.Sandbox(again(w.pod)) }
func current(w *world) *lab.Sandbox { return w.last }

func TestEveryCall(t *testing.T) {
	for name, s := range stories {
		for _, harm := range []string{"EIO", "KILL"} {
			t.Run(name+"/"+harm, func(t *testing.T) {
				t.Parallel()
				for n := 1; ; n++ {
					if n > 1000 {
						t.Fatal("no end in sight")
					}
					if !s.suffer(t, harm, n) {
						if n < 4 || harm == "EIO" && n < 20 {
							t.Errorf("only %d file-system calls: does anybody count them?", n-1)
						}
						break
					}
				}
			})
		}
	}
}

// stdout begins what reply.Harmed says of a write there. Nobody can be told anything then.
var stdout = fmt.Sprintf("system call %d on fd 1,", unix.SYS_WRITE)

// suffer tells the story with harm at the n-th call and reports whether there was an n-th call.
func (s story) suffer(t *testing.T, harm string, n int) (harmed bool) {
	t.Run(fmt.Sprint(n), func(t *testing.T) {
		w := newWorld(t)
		s.begin(w)
		sandbox := s.who(w)

		call := sandbox.IPAMCall(w.net, s.verb)
		call.Harm = &lab.Harm{At: n, Kill: harm == "KILL", Every: os.Getenv("LONG") != ""}
		reply := w.node.Call(call)
		harmed = reply.Harmed != ""
		defer func() {
			if t.Failed() {
				t.Logf("%s at call %d, %s: exit status %d, stdout %q, stderr %q", harm, n, reply.Harmed, reply.Exit, reply.Stdout, reply.Stderr)
			}
		}()

		// The caller is told, and properly.
		if strings.Contains(reply.Stderr, "panic") || strings.Contains(reply.Stderr, "goroutine ") {
			t.Error("it panicked")
		}
		if reply.Exit > 0 && reply.Err == nil && !strings.HasPrefix(reply.Harmed, stdout) {
			t.Error("neither a result nor a CNI error on stdout")
		}
		if !harmed && reply.Exit != 0 {
			t.Error("the unharmed call failed")
		}
		w.aftermath(s.verb, sandbox, reply)
	})
	return harmed
}

// aftermath goes on as a runtime and a kubelet do, and checks what must always hold (DESIGN 1).
func (w *world) aftermath(verb string, sandbox *lab.Sandbox, reply lab.Reply) {
	w.Helper()
	w.checkStore()
	printed := ""
	if verb == "ADD" && reply.Exit == 0 {
		printed = address(w.T, reply)
		if ls := w.bound(sandbox); len(ls) != 1 || ls[0].Address != printed {
			w.Errorf("%s was printed, and the store says %+v", printed, ls) // I4
		}
	}

	other := w.start("other-0")
	if other == w.home || other == printed {
		w.Errorf("another pod got %s", other) // I1, I2
	}
	// Whatever the runtime was told, it calls DEL in the end, and then the pod comes back.
	if r := sandbox.Call(w.net, "DEL"); r.Exit != 0 {
		w.Errorf("the next DEL failed: %+v", r)
	}
	w.remove(sandbox)
	if ls := w.bound(sandbox); len(ls) != 0 {
		w.Errorf("bound after its DEL: %+v", ls) // I3
	}
	home := w.home
	if home == "" {
		home = printed
	}
	w.bind()
	if home != "" && w.home != home {
		w.Errorf("the pod came back with %s, want %s", w.home, home) // I2
	}
	w.release()

	// In the end nothing is left over: the holds end, and every address is there to be had.
	w.node.Clock += time.Hour
	for i := range 6 - len(w.node.Leases()) {
		w.start(fmt.Sprint("filler-", i))
	}
	w.checkStore()
}

// newWorld is a node with a pool of six addresses.
func newWorld(t *testing.T) *world {
	node := lab.NewNode(t)
	ipam := lab.With(node.IPAM(), lab.Conf{"ranges": [][]lab.Conf{{{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.15"}}}})
	return &world{T: t, node: node, net: node.Network("net", "1.0.0", node.Bridge(ipam)), pod: lab.NewPod("default", "db-0", "10")}
}

// start runs a pod and returns its address.
func (w *world) start(name string) string {
	w.Helper()
	return w.add(w.node.Sandbox(lab.NewPod("default", name, "")))
}

func (w *world) add(sandbox *lab.Sandbox) string {
	w.Helper()
	r := sandbox.Call(w.net, "ADD")
	if r.Exit != 0 {
		w.Fatalf("ADD %s: %+v", sandbox.Pod.Name, r)
	}
	return address(w.T, r)
}

// address is what an ADD printed.
func address(t *testing.T, r lab.Reply) string {
	t.Helper()
	var result struct{ IPs []struct{ Address string } }
	if err := json.Unmarshal([]byte(r.Stdout), &result); err != nil || len(result.IPs) != 1 {
		t.Fatalf("ADD printed %q (%v), want a result with one address", r.Stdout, err)
	}
	addr, _, _ := strings.Cut(result.IPs[0].Address, "/")
	return addr
}

// bind gives db-0 its next sandbox.
func (w *world) bind() {
	w.Helper()
	w.last = w.node.Sandbox(again(w.pod))
	w.home = w.add(w.last)
}

func (w *world) release() {
	w.Helper()
	if r := w.last.Call(w.net, "DEL"); r.Exit != 0 {
		w.Fatalf("DEL: %+v", r)
	}
	w.remove(w.last)
}

// bound returns the leases that a sandbox holds.
func (w *world) bound(sandbox *lab.Sandbox) []lab.Lease {
	w.Helper()
	return slices.DeleteFunc(w.node.Leases("--state", "bound"), func(l lab.Lease) bool { return l.Container != sandbox.ID })
}

func (w *world) checkStore() {
	w.Helper()
	if out, err := w.node.Leasectl("check"); err != nil {
		w.Errorf("leasectl check: %v\n%s", err, out)
	}
}

// again returns the pod as its controller makes it anew: another UID.
func again(pod lab.Pod) lab.Pod {
	pod.UID = lab.NewPod("", "", "").UID
	return pod
}
