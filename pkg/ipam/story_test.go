package ipam

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/leasehold-cni/leasehold/pkg/importer"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestStories runs the stories of testdata on simulated nodes: what runtimes, users, host-local and
// the agent do in turn, and what comes of it. A line is one command. Those that do something:
//
//	node <set>...                    begins with a new node. A range set is 10.0.0.0/24 or
//	                                 10.0.0.0/24,10.0.0.2-10.0.0.5
//	ranges <set>...                  changes the ranges of the configuration
//	options <JSON>                   changes the policies of the ipam section
//	network <name>                   is the network of the calls that follow; cbr0 at first
//	data-dir <name>                  is the directory of the calls that follow; networks at first
//	move <name>                      moves that directory
//	own-cache                        libcni's entries are in a directory that only the configuration names
//
//	add <container> [pod] [uid=] [namespace=] [if=] [netns=] [address=] [window=] [as=] [silent] [= <addresses>]
//	! add ... = <error> <text>...    an ADD that fails. "as" is a reservation name, "silent" means no annotations
//	[!] check <container> [prev=]    CHECK
//	del <container> [interface]      DEL
//	teardown <container>...          DEL, then the namespace ends
//	unplug <container> <interface>   DEL of an interface, which then goes
//	gc <container>/<interface>...    GC, with what is valid
//	del-locked <container>           DEL, which finds the store locked
//	queue <container> [ago]          what such a DEL leaves
//	settle                           applies what is queued
//
//	start, end <container>...        a network namespace begins, ends
//	has <container> <address>...     what its interfaces have beside the addresses of ADDs
//	unplugged <container> <address>  an address of an ADD is off its interface
//	processes <container>...         whose namespaces exist in processes
//	same-namespace <new> <old>       another path leads to a namespace
//	after <time>, clock <step>       all clocks run, the wall clock alone steps
//	reboot, power-cut [run]          a boot, with and without what is queued; the run directory may survive it
//	on-node <name>                   the calls that follow are of another node, which mounts the same directories
//	set, unset <name>[=value]        what the caller sees of the node: see world.sees
//	lock, unlock <network>           host-local's lock is busy
//
//	host-local <address> <container> [interface]    host-local's file; old-host-local before v0.8.0
//	cached <container> <addresses> [netns=] [pod] [minutes] [name]    libcni's entry
//	host-local-add <pod> <container> <address>      both, and a namespace; host-local-del removes them
//	kruise-reservation <address> <pod> <container>  a reservation of the Kruise fork
//	wipe, truncate, age <name>...                   of a file: see world.named
//	save, restore <name>                            its content, or that of a directory
//	block <name>                                    a file is in the place of a directory
//	read-only, writable <address>                   an address file that can be neither written nor removed
//	unreadable, still-unreadable <address>          an address file that cannot be read
//	loop <name>                                     a link to itself is in the place of a file
//	damage, drop <word>; damage-head                records that have the word; the newest head page
//	format <number>                                 of the store
//
//	as-agent, as-plugin                       who calls
//	follow <pod> <uid> <window> [name]        the agent sees a pod; leaving, staying: whether it is deleted
//	name-pod <pod> <name>                     the agent stores a reservation name
//	revoke, end-holds <pod>; defer <pod> <time>; revoke-former <pod>: leases that its addresses had before
//	[!] release <pod or address> [force]; import; export; accept-loss; limits <key>=<value>...
//	release-all; import-file <address>; preview <address>...: what an import would read
//	survey safe|unsafe|unknown <text>         what a survey says of itself
//	round                                     one of the agent, where leasehold serves the network
//	kept                                      db-0's hold survives a round of the agent and a full pool
//	warned, journaled <text>, noted [text] by the last ADD
//
// With "!", other commands have to fail because the caller's view of the node is not proven.
//
// "remember" plans as a round of the agent does, and prints the plan, which "perform" performs
// later. The observations below print something, and compare it with the rest of their line.
//
// Files have the times of the simulated clock: see world.stamp.
func TestStories(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			env.Values[worldKey] = &story{t: env.T().(testing.TB)}
			return nil
		},
		Cmds: commands(),
	})
}

const worldKey = "world"

// story is what a script is about: the present node.
type story struct {
	t     testing.TB
	world *world
}

func commands() map[string]func(*testscript.TestScript, bool, []string) {
	out := map[string]func(*testscript.TestScript, bool, []string){
		"add": scriptAdd, "check": scriptCheck, "keep-mac": scriptKeepMAC, "release": scriptRelease,
		"status": scriptStatus,
		"node": func(ts *testscript.TestScript, _ bool, args []string) {
			s := ts.Value(worldKey).(*story)
			s.world = newWorld(s.t, ranges(args)...)
		},
	}
	for name, do := range actions {
		out[name] = func(ts *testscript.TestScript, neg bool, args []string) {
			w := ts.Value(worldKey).(*story).world
			w.isRefused = neg
			if do(w, args); w.isRefused {
				ts.Fatalf("%s succeeds", name)
			}
		}
	}
	expect := func(name string, print func(w *world, args []string) (got string, want []string)) {
		out[name] = func(ts *testscript.TestScript, neg bool, args []string) {
			got, want := print(ts.Value(worldKey).(*story).world, args)
			if neg || got != strings.Join(want, " ") {
				ts.Fatalf("got %s", got)
			}
		}
	}
	for name, print := range observations {
		expect(name, func(w *world, args []string) (string, []string) { return print(w), args })
	}
	for name, print := range observationsOf {
		expect(name, func(w *world, args []string) (string, []string) { return print(w, args[0]), args[1:] })
	}
	for name, do := range out {
		out[name] = func(ts *testscript.TestScript, neg bool, args []string) {
			do(ts, neg, args)
			ts.Value(worldKey).(*story).world.stamp()
		}
	}
	return out
}

var observations = map[string]func(*world) string{
	"leases": (*world).leases, "names": (*world).names, "recorded": (*world).recorded, "queued": (*world).queued,
	"files": (*world).files, "announced": (*world).notes, "usage": (*world).usage,
	"status-like-add": (*world).statusLikeADD, "queue-files": (*world).queueFiles,
	"remember": func(w *world) string { return w.remember(time.Now().Add(time.Hour)) },
	"perform": func(w *world) string {
		done, err := w.service.Act(w.t.Context(), w.remembered)
		w.must(err)
		return actionsOf(done)
	},
	"preview": (*world).preview,
	"plan":    (*world).plan, "collect": (*world).collect, "serve": (*world).serve,
	"journal": func(w *world) string { return w.journal()[len(w.journal())-1] },
	"neighbours": func(w *world) string { // that were forgotten
		forgotten := fmt.Sprint(w.forgotten)
		w.forgotten = nil
		return strings.Trim(forgotten, "[]")
	},
	// how many reservation names of pods the agent has stored
	"pod-names": func(w *world) string { return fmt.Sprint(len(w.look().NamedPods)) },
}

// The first argument is what they are about.
var observationsOf = map[string]func(*world, string) string{
	"events": (*world).eventsOf, "macs": (*world).macs, "bound": (*world).boundTo,
	"window":    func(w *world, pod string) string { return w.leaseOf(pod).Window.String() },
	"remaining": func(w *world, pod string) string { return w.leaseOf(pod).Remaining(w.now).String() },
	"known":     func(w *world, network string) string { return strconv.FormatBool(w.look().Imported(network)) },
	// what an agent plans whose node serves the network since the file of an address was written
	"plan-since": func(w *world, addr string) string {
		info, err := os.Stat(w.path(addr))
		w.must(err)
		return w.remember(info.ModTime())
	},
	"holder": func(w *world, pod string) string {
		h := w.leaseOf(pod).Holder
		return h.ContainerID + " " + h.Netns.Path
	},
	"counter": func(w *world, name string) (n string) {
		w.view(func(tx *store.Tx) { n = fmt.Sprint(tx.Counter(name)) })
		return n
	},
	"file": func(w *world, addr string) string { return strconv.Quote(w.file(addr)) },
	"present": func(w *world, name string) string {
		_, err := os.Lstat(w.named(name))
		return strconv.FormatBool(err == nil)
	},
}

var actions = map[string]func(w *world, args []string){
	"ranges":  func(w *world, args []string) { w.setRanges(ranges(args)...) },
	"network": func(w *world, args []string) { w.network = args[0] },
	"data-dir": func(w *world, args []string) {
		w.dataDir = filepath.Join(filepath.Dir(w.dataDir), args[0])
	},
	"move": func(w *world, args []string) {
		moved := filepath.Join(filepath.Dir(w.dataDir), args[0])
		w.must(os.Rename(w.dataDir, moved))
		w.dataDir = moved
	},
	"on-node":   func(w *world, args []string) { w.onNode(strings.Join(args, "")) },
	"own-cache": func(w *world, _ []string) { w.ownCache() },
	"options":   each((*world).setOptions),

	"teardown":   each((*world).stop),
	"del":        func(w *world, args []string) { w.delOf(args[0], append(args, "eth0")[1]) },
	"unplug":     func(w *world, args []string) { w.unplug(args[0], args[1]) },
	"gc":         func(w *world, args []string) { w.gc(attachments(args)...) },
	"queue":      func(w *world, args []string) { w.queue(args[0], duration(append(args, "0")[1])) },
	"del-locked": each((*world).fails),
	"settle":     func(w *world, _ []string) { w.settle() },

	"start": each((*world).unpack),
	"end":   each(func(w *world, name string) { delete(w.netns, netnsPath(name)) }),
	"has": func(w *world, args []string) {
		delete(w.addrs, netnsPath(args[0]))
		for _, a := range args[1:] {
			w.has(args[0], a)
		}
	},
	"unplugged": func(w *world, args []string) { w.take(args[0], netip.MustParseAddr(args[1])) },
	"processes": func(w *world, args []string) {
		clear(w.inPID)
		for _, name := range args {
			w.inPID[w.numbers[name]] = true
		}
	},
	"same-namespace": func(w *world, args []string) {
		w.netns[netnsPath(args[0])] = w.numbers[args[1]]
		w.numbers[args[0]] = w.numbers[args[1]]
	},
	"after":     func(w *world, args []string) { w.after(duration(args[0])) },
	"clock":     func(w *world, args []string) { w.setClock(args[0]) },
	"reboot":    func(w *world, _ []string) { w.reboot() },
	"power-cut": func(w *world, args []string) { w.boot(len(args) > 0) },
	"set":       func(w *world, args []string) { w.sees(args[0], true) },
	"unset":     func(w *world, args []string) { w.sees(args[0], false) },

	"host-local":       func(w *world, args []string) { w.hostLocal(args[0], strings.Join(args[1:], "\r\n")) },
	"old-host-local":   func(w *world, args []string) { w.write(w.path(args[0]), args[1]) },
	"cached":           func(w *world, args []string) { w.cached(args[0], args[1], args[2:]...) },
	"host-local-add":   func(w *world, args []string) { w.startedByHostLocal(args[0], args[1], args[2]) },
	"host-local-del":   func(w *world, args []string) { w.stoppedByHostLocal(args[0], args[1]) },
	"wipe":             each(func(w *world, name string) { w.wipe(w.named(name)) }),
	"save":             each((*world).save),
	"restore":          each((*world).restore),
	"block":            each(func(w *world, name string) { w.must(os.WriteFile(w.named(name), nil, 0o600)) }),
	"read-only":        each((*world).readOnly),
	"writable":         each((*world).writable),
	"unreadable":       each((*world).unreadable),
	"still-unreadable": each((*world).stillUnreadable),
	"truncate":         each(func(w *world, name string) { w.must(os.Truncate(w.named(name), 0)) }),
	"loop": each(func(w *world, name string) { // a link to itself, which nobody can follow
		w.wipe(w.named(name))
		w.must(os.Symlink(w.named(name), w.named(name)))
	}),
	"format": each(func(w *world, format string) {
		n, err := strconv.ParseUint(format, 10, 8)
		w.must(err)
		w.setFormat(byte(n))
	}),
	"age": each(func(w *world, name string) { w.setTime(w.named(name), w.now.Wall.Add(-time.Hour)) }),
	"unlockable": func(w *world, _ []string) {
		w.wipe(w.path("lock"))
		w.must(os.Mkdir(w.path("lock"), 0o700))
	},
	"unknown-mark":       func(w *world, _ []string) { w.write(w.path(".leasehold"), "a mark of another version\n") },
	"kruise-reservation": func(w *world, args []string) { w.reservedByKruise(args[0], args[1], args[2]) },
	"damage":             each(func(w *world, word string) { spoilRecord(w.t, w.storeFile(), word) }),
	"drop":               each(func(w *world, word string) { dropRecord(w.t, w.storeFile(), word) }),
	"damage-head":        func(w *world, _ []string) { spoilNewestHead(w.t, w.storeFile()) },

	"as-agent":  func(w *world, _ []string) { w.asAgent() },
	"as-plugin": func(w *world, _ []string) { w.service.Node.Plugin = true },
	"follow": func(w *world, args []string) {
		args = append(args, "")
		w.followPod(maintain.PodWindow{Namespace: "db", Name: args[0], SetWindow: lease.SetWindow{UID: args[1],
			Window: lease.Window(duration(args[2])), ReserveAs: args[3]}})
	},
	"name-pod": func(w *world, args []string) {
		w.must(w.service.NamePods(w.t.Context(), []store.NamedPod{{Namespace: "db", Name: args[0],
			UID: "uid-of-" + args[0], ReserveAs: args[1], Window: lease.Window(hour)}}))
	},
	"leaving": each((*world).leaving),
	"staying": each(func(w *world, pod string) { w.marks(pod, true) }),
	"limits": func(w *world, args []string) {
		limits := policy.Limits{}
		for _, a := range args {
			key, value, _ := strings.Cut(a, "=")
			limits[key] = value
		}
		w.setLimits(limits)
		if got := w.look().Limits; !maps.Equal(got, limits) {
			w.t.Fatalf("the agent reads the limits %v", got)
		}
	},
	"accept-loss":    func(w *world, _ []string) { w.must(w.service.AcceptLoss(w.t.Context())) },
	"forget-journal": func(w *world, _ []string) { w.forget() },
	"journaled": func(w *world, args []string) {
		if text := strings.Join(args, " "); !slices.Contains(w.journal(), text) {
			w.t.Fatalf("the journal is %q", w.journal())
		}
	},
	"lock":   each(func(w *world, network string) { w.locks[network] = w.lockFiles(network) }),
	"unlock": each(func(w *world, network string) { w.must(w.locks[network].Close()) }),
	"revoke": each(func(w *world, pod string) {
		_, err := w.service.RevokePods(w.t.Context(), [][]maintain.Ref{w.refs(pod)}, "spec.release")
		w.must(err)
	}),
	"revoke-former": each(func(w *world, pod string) {
		refs := w.refs(pod)
		for i := range refs {
			refs[i].ID = "0011223344556677"
		}
		ended, err := w.service.RevokePods(w.t.Context(), [][]maintain.Ref{refs}, "spec.release")
		if w.must(err); len(ended) > 0 {
			w.t.Fatalf("ended %v", ended)
		}
	}),
	"defer": func(w *world, args []string) {
		gone := maintain.Ref{Pool: w.where().Pool, Address: netip.MustParseAddr("10.0.0.99"), ID: "0011223344556677"}
		_, err := w.service.Defer(w.t.Context(), append(w.refs(args[0]), gone), duration(args[1]))
		w.must(err)
	},
	"end-holds": each(func(w *world, pod string) {
		_, err := w.service.EndHolds(w.t.Context(), [][]maintain.Ref{w.refs(pod)}, "it is elsewhere")
		w.must(err)
	}),
	"release-all": func(w *world, _ []string) {
		_, err := w.service.Revoke(w.t.Context(), func(lease.Lease) bool { return true }, false, "by hand")
		w.must(err)
	},
	"import-file": each(func(w *world, addr string) {
		l := lease.Lease{Pool: w.where().Pool, Address: netip.MustParseAddr(addr)}
		_, err := w.service.Act(w.t.Context(), []maintain.Action{{Do: maintain.Import, Lease: l}})
		w.must(err)
	}),
	"export": func(w *world, _ []string) { w.export() },
	"import": func(w *world, _ []string) {
		_, _, err := w.service.Import(w.t.Context(), w.where().Pool)
		w.must(err)
	},
	"noted": func(w *world, args []string) {
		said := strings.Join(w.noted, "\n")
		if (said == "") != (len(args) == 0) || !strings.Contains(said, strings.Join(args, " ")) {
			w.t.Fatalf("noted: %s", said)
		}
	},
	"warned": func(w *world, args []string) {
		if said := strings.Join(w.warned, "\n"); !strings.Contains(said, strings.Join(args, " ")) {
			w.t.Fatalf("warned: %s", said)
		}
		w.warned = nil
	},
	"survey": (*world).surveyIs,
	"kept":   (*world).isKept,
	"round":  func(w *world, _ []string) { w.serve() },
}

func each(do func(w *world, name string)) func(*world, []string) {
	return func(w *world, args []string) {
		for _, a := range args {
			do(w, a)
		}
	}
}

// errAny is any error.
var errAny = errors.New("any error")

// refusals are the errors that a story may expect.
var refusals = map[string]error{
	"exhausted": ErrExhausted, "unavailable": ErrUnavailable, "in-use": ErrAddressInUse, "no-netns": ErrNetns,
	"request": ErrRequest, "any": errAny, "unreadable": importer.ErrUnreadable, "no-evidence": operation.ErrNoEvidence,
	"other-node": operation.ErrOtherNode,
}

func scriptAdd(ts *testscript.TestScript, neg bool, args []string) {
	w := ts.Value(worldKey).(*story).world
	var want []string
	if i := slices.Index(args, "="); i >= 0 {
		args, want = args[:i], args[i+1:]
	}
	r, err := w.tryAdd(parseAsk(args))
	switch {
	case !neg && (err != nil || want != nil && addresses(r) != want[0]):
		ts.Fatalf("got %s, %v", addresses(r), err)
	case neg && (refusals[want[0]] == nil || err == nil || want[0] != "any" && !errors.Is(err, refusals[want[0]])):
		ts.Fatalf("got %s, %v", addresses(r), err)
	case neg:
		for _, text := range want[1:] {
			if !strings.Contains(err.Error(), text) {
				ts.Fatalf("the error does not say %q: %v", text, err)
			}
		}
	}
}

func scriptCheck(ts *testscript.TestScript, neg bool, args []string) {
	w := ts.Value(worldKey).(*story).world
	a := parseAsk(args)
	r := w.request(a)
	for addr := range strings.SplitSeq(a.prev, ",") {
		if addr != "" {
			r.Prev = append(r.Prev, netip.MustParseAddr(addr))
		}
	}
	if err := w.service.Verify(w.t.Context(), r); neg != errors.Is(err, ErrCheckFailed) || !neg && err != nil {
		ts.Fatalf("got %v", err)
	}
}

// [!] status [<error>]
func scriptStatus(ts *testscript.TestScript, neg bool, args []string) {
	w := ts.Value(worldKey).(*story).world
	err := w.service.Status(w.t.Context(), w.where())
	if neg && !errors.Is(err, ErrNotReady) || neg && args[0] != "any" && !errors.Is(err, refusals[args[0]]) ||
		!neg && err != nil {
		ts.Fatalf("got %v", err)
	}
}

// [!] release <pod or address> [force]: leasectl release, which a living holder refuses
func scriptRelease(ts *testscript.TestScript, neg bool, args []string) {
	w := ts.Value(worldKey).(*story).world
	of := func(l lease.Lease) bool { return l.Name == args[0] || l.Address.String() == args[0] }
	done, err := w.service.Revoke(w.t.Context(), of, len(args) > 1, "by hand")
	if err != nil || len(done) != 1 || !neg && done[0].Err != nil ||
		neg && !errors.Is(done[0].Err, lease.ErrHolderAlive) {
		ts.Fatalf("got %+v, %v", done, err)
	}
}

// keep-mac <container> <MAC> [fixed] <address>... [= <MAC>]
func scriptKeepMAC(ts *testscript.TestScript, neg bool, args []string) {
	w := ts.Value(worldKey).(*story).world
	want := ""
	if i := slices.Index(args, "="); i >= 0 {
		args, want = args[:i], args[i+1]
	}
	has, err := net.ParseMAC(args[1])
	w.must(err)
	fixed := args[2] == "fixed"
	var addrs []netip.Addr
	for _, a := range args[2:] {
		if a != "fixed" {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
	}
	mac, ok, err := w.service.KeepMAC(w.t.Context(), on(args[0], "eth0"), addrs, has, fixed)
	got := "none"
	if ok {
		got = mac.String()
	}
	if err != nil || neg || want != "" && got != want {
		ts.Fatalf("got %s, %v", got, err)
	}
}

func parseAsk(args []string) ask {
	a := ask{container: args[0]}
	texts := map[string]*string{"uid": &a.uid, "namespace": &a.namespace, "if": &a.ifName, "netns": &a.netns,
		"as": &a.reserveAs, "expected": &a.expected, "address": &a.requested, "prev": &a.prev}
	for _, arg := range args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		switch text := texts[key]; {
		case text != nil:
			*text = value
		case key == "window":
			a.window = duration(value)
		case key == "silent":
			a.silent = true
		default:
			a.pod = arg
		}
	}
	return a
}

func ranges(args []string) []string {
	out := slices.Clone(args)
	for i := range out {
		out[i] = strings.Replace(out[i], ",", " ", 1)
	}
	return out
}

// duration panics if the duration is none, which fails the story.
func duration(s string) time.Duration {
	if s == "forever" {
		return time.Duration(lease.Forever)
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		panic(err)
	}
	return d
}

func netnsPath(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	return "/run/netns/" + name
}

func attachments(args []string) (out []lease.Attachment) {
	for _, a := range args {
		container, ifName, _ := strings.Cut(a, "/")
		out = append(out, on(container, ifName))
	}
	return out
}

// named returns the path of what a story calls by a name.
func (w *world) named(name string) string {
	dirs := w.service.Node.Store.Dirs()
	if container, ok := strings.CutPrefix(name, "cache/"); ok {
		return w.cacheFile(container)
	}
	if dir, pod, ok := strings.Cut(name, "/"); ok && strings.HasPrefix(dir, "reserved") { // of the Kruise fork
		return filepath.Join(w.dataDir, dir, "db", pod)
	}
	paths := map[string]string{"state": dirs.State, "store": w.storeFile(), "run": dirs.Run, "networks": w.dataDir,
		"network": w.path(""), "queue": w.service.Node.Store.Run().Queue(),
		"announcements": w.service.Node.Store.Run().Announcements()}
	return cmp.Or(paths[name], w.path(name))
}

func (w *world) queue(container string, ago time.Duration) {
	at := w.service.Node.Clock()
	at.Wall, at.Boot = at.Wall.Add(-ago), at.Boot-ago
	who := lease.Attachment{ContainerID: container, IfName: "eth0"}
	w.must(w.service.Node.Store.Run().AddDEL(who, lease.Pool{}, at))
}

func (w *world) must(err error) {
	w.t.Helper()
	if w.isRefused && errors.Is(err, operation.ErrNoHostView) {
		w.isRefused, err = false, nil
	}
	must.Succeed(w.t, err)
}

// surveyIs expects a survey that is safe to act on, is not, or for which the state of one holder is
// unknown.
func (w *world) surveyIs(args []string) {
	v, text := w.survey(), strings.Join(args[1:], " ")
	says := func(err error) bool { return err != nil && strings.Contains(err.Error(), text) }
	if !map[string]bool{
		"safe":    v.Unsafe == nil && v.Unknown == 0 && v.WhyUnknown == nil,
		"unsafe":  errors.Is(v.Unsafe, operation.ErrNoHostView) && says(v.Unsafe) && len(maintain.Plan(v)) == 0,
		"unknown": v.Unsafe == nil && v.Unknown == 1 && says(v.WhyUnknown),
	}[args[0]] {
		w.t.Fatalf("unsafe: %v, unknown %d: %v", v.Unsafe, v.Unknown, v.WhyUnknown)
	}
}

// preview returns the addresses that a dry run of an import shows.
func (w *world) preview() string {
	found, problems, err := w.service.Preview(w.t.Context(), w.where().Pool)
	w.must(err)
	var out []string
	for _, f := range found {
		out = append(out, f.Lease.Address.String())
	}
	return strings.Join(append(out, problems...), " ")
}

func (w *world) boundTo(container string) string {
	leases, err := w.service.Bound(w.t.Context(), on(container, "eth0"))
	w.must(err)
	var out []string
	for _, l := range leases {
		out = append(out, l.Address.String())
	}
	return strings.Join(out, " ")
}

// setClock steps the wall clock. "1970" is where a machine without a battery begins, and "right"
// undoes it.
func (w *world) setClock(step string) {
	switch step {
	case "1970":
		w.wrong = time.Unix(100, 0).Sub(w.now.Wall)
		w.now.Wall = w.now.Wall.Add(w.wrong)
	case "right":
		w.now.Wall = w.now.Wall.Add(-w.wrong)
	default:
		w.now.Wall = w.now.Wall.Add(duration(step))
	}
}

// sees changes what the caller sees of the node.
func (w *world) sees(what string, set bool) {
	name, value, _ := strings.Cut(what, "=")
	switch name {
	case "machine":
		w.first = set
	case "elsewhere":
		w.elsewhere(set)
	case "blind":
		w.blind = set
	case "unlisted":
		w.unlisted = set
	case "spaces":
		w.spaces = value
	case "hidden":
		w.hidden = map[string]bool{netnsPath(value): set}
	case "closed":
		w.closed = map[string]bool{netnsPath(value): set}
	case "namespaces":
		clear(w.netns)
	case "boot-id":
		w.now.BootID = value
	case "uptime":
		w.now.Boot = duration(value)
	default:
		w.t.Fatalf("set %s: no such thing", what)
	}
}

// setOptions changes what the ipam section has of policies.
func (w *world) setOptions(ipam string) {
	w.must(json.Unmarshal([]byte(ipam), &w.section))
	options, err := w.section.Config()
	w.must(err)
	w.options = options
}

// usage returns the usage of each range set, as ranges: size=bound+held+free.
func (w *world) usage() string {
	var out []string
	w.view(func(tx *store.Tx) {
		for _, u := range tx.Usage() {
			out = append(out, fmt.Sprintf("%s: %d=%d+%d+%d", u.Ranges, u.Size, u.Bound, u.Held, u.Free))
		}
	})
	return strings.Join(out, " ")
}

// isKept expects that the address of db-0 is not given to others, by the plugin or the collector.
func (w *world) isKept([]string) {
	w.collect()
	w.refused(ask{pod: "x", container: "x"}, ErrExhausted)
	if l := w.leaseOf("db-0"); l.State != lease.Held || !l.IsHold {
		w.t.Errorf("%+v", l)
	}
}

// reservedByKruise writes a reservation of the Kruise fork.
func (w *world) reservedByKruise(addr, pod, container string) {
	w.write(filepath.Join(w.dataDir, "reserved", "db", pod), fmt.Sprintf(`{"containerId":%q,"ifName":"eth0",`+
		`"IPConf":{"address":"%s/24","gateway":"10.0.0.1"},"duration":60}`, container, addr))
}
