package ipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

type operations = maintain.Service

// service has all that is done to the leases of a node.
type service struct {
	*Service
	*operations
	Node *operation.Node
}

func serviceOf(n *operation.Node) service { return service{&Service{Node: n}, &operations{Node: n}, n} }

// world is a simulated node over a real store: namespaces come and go, clocks
// run, the node boots.
type world struct {
	t          testing.TB
	service    service
	*machine           // the present node
	home       machine // what it has, while the caller is elsewhere
	isRefused  bool    // a command has to fail, because its view is not proven
	now        lease.Instant
	hidden     map[string]bool // paths that cannot be looked at
	last       uint64
	blind      bool   // /proc cannot be read whole
	unlisted   bool   // namespaces cannot be listed
	first      bool   // it is the machine itself: no plugin needs to say so
	spaces     string // what else is not the same in a container
	sets       []pool.Set
	options    policy.Config
	section    policy.RawConfig // of the ipam section, in stories
	wrong      time.Duration    // by which "clock 1970" has stepped the wall clock
	locks      map[string]*os.File
	saved      map[string]map[string][]byte // files by their paths, by the name of what was saved
	remembered []maintain.Action
	dataDir    string
	network    string
	warned     []string
	noted      []string             // by the last ADD
	stamped    map[string]time.Time // the times of files: see stamp
	stamps     int
	nodes      map[string]*machine // by their names
	configured []string            // directories of libcni's cache that the configuration names

	released  bool            // a DEL may wait in the queue
	closed    map[string]bool // paths of namespaces that cannot be entered
	forgotten []netip.Addr    // neighbours
}

func newWorld(t testing.TB, ranges ...string) *world {
	dir := t.TempDir()
	w := &world{
		t: t, dataDir: filepath.Join(dir, "networks"),
		locks: map[string]*os.File{}, saved: map[string]map[string][]byte{},
		stamped: map[string]time.Time{},
		last:    100, network: "cbr0", options: policy.Defaults(),
		now: lease.Instant{Wall: time.Unix(1_700_000_000, 0).UTC(), Boot: time.Hour, BootID: "boot-1"},
	}
	w.setRanges(ranges...)
	w.machine = w.newMachine(dir, w.now.BootID)
	w.nodes = map[string]*machine{"": w.machine}
	n := &operation.Node{
		Store: w.store, Host: w, Plugin: true, Clock: func() lease.Instant { return w.now },
		Warn: func(s string) { w.warned = append(w.warned, s) },
	}
	w.service = serviceOf(n)
	t.Cleanup(w.check)
	return w
}

func (w *world) check() {
	w.t.Helper()
	w.view(func(tx *store.Tx) {
		for _, f := range tx.Check() {
			w.t.Error("check: " + f)
		}
	})
}

func (w *world) view(fn func(*store.Tx)) {
	w.t.Helper()
	err := w.service.Node.Store.View(context.Background(), func(tx *store.Tx) error { fn(tx); return nil })
	must.Succeed(w.t, err)
}

// setRanges: "10.0.0.0/29" or "10.0.0.0/24 10.0.0.10-10.0.0.12", a set each.
func (w *world) setRanges(ranges ...string) {
	w.sets = nil
	for _, r := range ranges {
		subnet, span, _ := strings.Cut(r, " ")
		var from, to netip.Addr
		if a, b, ok := strings.Cut(span, "-"); ok {
			from, to = netip.MustParseAddr(a), netip.MustParseAddr(b)
		}
		rng, err := pool.NewRange(netip.MustParsePrefix(subnet), from, to, netip.Addr{})
		w.must(err)
		set, err := pool.NewSet(rng)
		w.must(err)
		w.sets = append(w.sets, set)
	}
}

// The simulated kernel.

func (w *world) Netns(path string) (lease.Netns, error) {
	ino, ok := w.netns[path]
	if !ok {
		return lease.Netns{Path: path}, fmt.Errorf("%w: %s", host.ErrNotNetns, path)
	}
	return lease.Netns{Path: path, Dev: 4, Ino: ino}, nil
}

func (w *world) QuickState(h lease.Holder, boot string) (lease.Liveness, error) {
	switch ino, ok := w.netns[h.Netns.Path]; {
	case h.BootID != "" && boot != "" && h.BootID != boot:
		return lease.Dead, nil
	case h.Netns.Ino == 0 || w.hidden[h.Netns.Path]:
		return lease.Unknown, fmt.Errorf("%s: permission denied", h.Netns.Path)
	case ok && ino == h.Netns.Ino:
		return lease.Alive, nil
	}
	return lease.Unknown, nil
}

func (w *world) AddressesIn(n lease.Netns) ([]netip.Addr, error) {
	ino, ok := w.netns[n.Path]
	switch {
	case w.hidden[n.Path] || w.closed[n.Path]:
		return nil, fmt.Errorf("%s: permission denied", n.Path)
	case !ok || ino != n.Ino:
		return nil, host.ErrNetnsGone
	}
	return slices.Concat(w.plugged[n.Path], w.addrs[n.Path]), nil
}

func (w *world) unseen() error {
	if w.blind {
		return errors.New("readlink /proc/77/ns/net: permission denied")
	}
	return nil
}

func (w *world) ProcessNetns() (map[uint64]bool, error) {
	return inodes(maps.Keys(w.inPID)), w.unseen()
}

func (w *world) MountedNetns() (map[uint64]bool, error) {
	return inodes(maps.Values(w.netns)), w.unseen()
}

func inodes(seq iter.Seq[uint64]) map[uint64]bool {
	out := map[uint64]bool{}
	for ino := range seq {
		out[ino] = true
	}
	return out
}

func (w *world) NamespaceIDs(boot string) string {
	if w.spaces == "unreadable" {
		return ""
	}
	return boot + " " + w.spaces
}

func (w *world) ProveView(word, boot string, _ iter.Seq[lease.Lease]) error {
	check.Equal(w.t, boot, w.now.BootID, "the boot of ProveView")
	if w.first && !host.IsOfBoot(word, boot) {
		return nil
	}
	if word != w.NamespaceIDs(boot) {
		return fmt.Errorf("%w: the plugin runs in %q", host.ErrNotHost, word)
	}
	return nil
}

func (w *world) Namespaces() ([]host.Namespace, error) {
	if w.unlisted {
		return nil, errors.New("open /proc/self/mountinfo: permission denied")
	}
	var out []host.Namespace
	for path, addrs := range w.addrs {
		if netns, err := w.Netns(path); err == nil {
			n := host.Namespace{Netns: netns}
			for _, a := range addrs {
				n.Addresses = append(n.Addresses, host.Address{Addr: a, IfName: "eth0"})
			}
			out = append(out, n)
		}
	}
	return out, nil
}

func (w *world) ForgetNeighbours(addrs []netip.Addr) error {
	w.forgotten = append(w.forgotten, addrs...)
	return nil
}

func (w *world) where() operation.Scope {
	in := operation.Existing(w.request(ask{}).Pool, w.sets)
	in.Caches = w.configured
	return in
}

func (w *world) after(d time.Duration) {
	w.now.Wall, w.now.Boot = w.now.Wall.Add(d), w.now.Boot+d
}

// reboot is an orderly one of a node with an agent, which has applied the DELs that were queued.
func (w *world) reboot() {
	w.t.Helper()
	w.settle()
	w.boot(false)
}

// boot begins a boot: within a minute, of which the new boot's clock counts the second half. The
// run directory survives it if it is not in memory.
func (w *world) boot(run bool) {
	w.t.Helper()
	if !run {
		w.wipe(w.service.Node.Store.Dirs().Run)
	}
	w.now.BootID += "'"
	w.now.Boot = time.Minute / 2
	w.now.Wall = w.now.Wall.Add(time.Minute)
	w.netns, w.inPID = map[string]uint64{}, map[uint64]bool{}
}

// stamp gives the files that were written since the last call the time of the simulated clock, in
// their order: a moment before now, which is when the next call is. A file to which the plugin has
// given an earlier time of that clock keeps it.
func (w *world) stamp() {
	if w == nil {
		return
	}
	type change struct {
		path string
		at   time.Time
	}
	var changes []change
	look := func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil
		}
		info, err := d.Info()
		if err != nil || info.ModTime().Equal(w.stamped[path]) {
			return nil
		}
		if at := info.ModTime(); at.Before(began) && !at.Equal(w.now.Wall) {
			w.stamped[path] = at
		} else {
			changes = append(changes, change{path, at})
		}
		return nil
	}
	for _, name := range []string{"networks", filepath.Base(w.dataDir), "results"} {
		_ = filepath.WalkDir(filepath.Join(filepath.Dir(w.dataDir), name), look)
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.path, b.path)) })
	for _, c := range changes {
		w.stamps++
		w.setTime(c.path, w.now.Wall.Add(time.Duration(w.stamps)*time.Microsecond-time.Second/10))
	}
}

// began is later than all times of simulated clocks.
var began = time.Now()

// setTime sets when a file was written.
func (w *world) setTime(path string, at time.Time) {
	w.t.Helper()
	if err := os.Chtimes(path, at, at); err == nil { // else it is read-only: its time counts as a later one
		w.stamped[path] = at
	}
}

// save keeps the content of a file, or of the files of a directory, for restore.
func (w *world) save(name string) {
	w.t.Helper()
	files := map[string][]byte{}
	w.must(filepath.WalkDir(w.named(name), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files[path], err = os.ReadFile(path)
		}
		return err
	}))
	w.saved[name] = files
}

// restore brings the files back that save has kept, and removes what a directory had not.
func (w *world) restore(name string) {
	w.t.Helper()
	w.must(filepath.WalkDir(w.named(name), func(path string, d fs.DirEntry, err error) error {
		if _, saved := w.saved[name][path]; err == nil && !d.IsDir() && !saved {
			err = os.Remove(path)
		}
		return err
	}))
	for path, content := range w.saved[name] {
		w.must(os.WriteFile(path, content, 0o600))
	}
}

// machine is what one node of a story does not share with another one that mounts the same
// directories.
type machine struct {
	store   *store.Store
	bootID  string
	netns   map[string]uint64       // path -> inode
	numbers map[string]uint64       // of the containers' namespaces, which may be gone
	inPID   map[uint64]bool         // inodes that only a process keeps alive
	addrs   map[string][]netip.Addr // path -> addresses in the namespace, as Namespaces shows them
	plugged map[string][]netip.Addr // path -> those that ADDs gave it, on its interfaces
}

// newMachine returns a node whose directories are in dir.
func (w *world) newMachine(dir, boot string) *machine {
	m := &machine{
		store: store.New(store.Dirs{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}), bootID: boot,
		netns: map[string]uint64{}, numbers: map[string]uint64{}, inPID: map[uint64]bool{},
		addrs: map[string][]netip.Addr{}, plugged: map[string][]netip.Addr{},
	}
	m.store.BootID = func() string { return w.now.BootID }
	return m
}

// onNode makes another node the present one. The first one has no name.
func (w *world) onNode(name string) {
	w.bootID = w.now.BootID
	if w.nodes[name] == nil {
		w.nodes[name] = w.newMachine(filepath.Join(filepath.Dir(w.dataDir), name), "boot-of-"+name)
	}
	w.machine = w.nodes[name]
	w.service.Node.Store, w.now.BootID = w.store, w.bootID
}

// The runtime: a sandbox "c1" of pod "db-0" is an own namespace and an ADD.

type ask struct {
	pod, container, uid string
	window              time.Duration
	silent              bool // the runtime passes no annotations
	ifName              string
	requested           string
	netns               string
	namespace           string // "db" if empty
	reserveAs           string // the reservation name
	prev                string // CHECK's prevResult, comma-separated
	expected            string // the addresses that the webhook has found for the pod
}

func (w *world) request(a ask) Request {
	r := Request{
		Pool:        lease.Pool{DataDir: w.dataDir, Network: w.network},
		ContainerID: a.container, IfName: cmp.Or(a.ifName, "eth0"),
		NetnsPath: cmp.Or(a.netns, netnsPath(a.container)),
		Sets:      w.sets, Options: w.policies(),
		Retention: policy.Request{Known: !a.silent, Window: lease.Window(a.window)},
	}
	if a.window > 0 {
		r.Retention.ReserveAs, r.Retention.Expected = a.reserveAs, a.expected
	}
	if a.pod != "" {
		r.Pod = Pod{Namespace: cmp.Or(a.namespace, "db"), Name: a.pod, UID: cmp.Or(a.uid, "uid-of-"+a.container)}
	}
	if a.requested != "" {
		r.Requested = []netip.Addr{netip.MustParseAddr(a.requested)}
	}
	return r
}

// unpack makes the sandbox's namespace.
func (w *world) unpack(container string) {
	w.last++
	w.netns[netnsPath(container)], w.numbers[container] = w.last, w.last
	delete(w.plugged, netnsPath(container))
}

// burn removes it.
func (w *world) burn(container string) { delete(w.netns, "/run/netns/"+container) }

func (w *world) tryAdd(a ask) (Result, error) {
	if _, ok := w.netns["/run/netns/"+a.container]; !ok && a.netns == "" {
		w.unpack(a.container)
	}
	req := w.request(a)
	r, err := w.service.Assign(context.Background(), req)
	w.noted = r.Notes
	for _, given := range r.Addresses { // the plugin that called puts them on an interface
		w.plug(req.NetnsPath, given.Address.Addr())
	}
	return r, err
}

// plug puts an address on an interface of the namespace at the path.
func (w *world) plug(path string, addr netip.Addr) {
	if _, lives := w.netns[path]; lives {
		w.plugged[path] = append(w.plugged[path], addr)
	}
}

// on names an interface of a container.
func on(container, ifName string) lease.Attachment {
	return lease.Attachment{ContainerID: container, IfName: ifName}
}

// unplug is a DEL for an interface of a sandbox that lives on; then the interface goes.
func (w *world) unplug(container, ifName string) {
	w.t.Helper()
	leases, err := w.service.Bound(context.Background(), on(container, ifName))
	w.must(err)
	w.delOf(container, ifName)
	for _, l := range leases {
		w.take(container, l.Address)
	}
}

// take takes an address off the interfaces of a sandbox.
func (w *world) take(container string, addr netip.Addr) {
	path := "/run/netns/" + container
	w.plugged[path] = slices.DeleteFunc(w.plugged[path], func(a netip.Addr) bool { return a == addr })
}

// add returns the addresses, separated by commas.
func (w *world) add(a ask) string {
	w.t.Helper()
	r, err := w.tryAdd(a)
	must.Succeed(w.t, err, "ADD of", a.container, "for", a.pod)
	return addresses(r)
}

func addresses(r Result) string {
	var out []string
	for _, a := range r.Addresses {
		out = append(out, a.Address.Addr().String())
	}
	return strings.Join(out, ",")
}

// refused expects an ADD to fail with the error.
func (w *world) refused(a ask, want error) {
	w.t.Helper()
	r, err := w.tryAdd(a)
	check.Is(w.t, err, want, "ADD of", a.container, "for", a.pod, addresses(r))
}

// another is the plugin as another process. Views of one process wait for each other.
func (w *world) another() service {
	w.released = true
	n := *w.service.Node
	bootID := n.Store.BootID
	n.Store = store.New(n.Store.Dirs())
	n.Store.BootID = bootID
	return serviceOf(&n)
}

// settle applies the queued DELs, as the agent does and the next ADD would.
func (w *world) settle() {
	w.t.Helper()
	w.released = false
	err := w.service.Node.Update(context.Background(), operation.Scope{}, func(*operation.Call) error { return nil })
	w.must(err)
}

func (w *world) del(container string) {
	w.t.Helper()
	w.delOf(container, "eth0")
}

// stop is what a runtime does: DEL, then the namespace goes.
func (w *world) stop(container string) {
	w.t.Helper()
	w.del(container)
	w.burn(container)
}

func (w *world) same(what, got, want string) {
	w.t.Helper()
	check.Equal(w.t, got, want, what)
}

// recorded prints the leases as they are in the store, where queued DELs are not applied yet.
func (w *world) recorded() string {
	w.t.Helper()
	dirs := w.service.Node.Store.Dirs()
	dirs.Run = w.t.TempDir() // without a queue
	var out []string
	w.must(store.New(dirs).View(context.Background(), func(tx *store.Tx) error {
		tx.All(func(l lease.Lease, err error) bool {
			out = append(out, fmt.Sprintf("%s=%s", l.Name, l.State))
			return err == nil
		})
		return nil
	}))
	return strings.Join(out, " ")
}

// all returns the leases, those of damaged records with State None.
func (w *world) all() (out []lease.Lease) {
	w.view(func(tx *store.Tx) {
		for l := range tx.All {
			out = append(out, l)
		}
	})
	return out
}

// leases prints the store, a lease a word: "10.0.0.2=db-0/Bound". A hold is Held.
func (w *world) leases() string {
	var out []string
	for _, l := range w.all() {
		word := l.State.String()
		if l.State == lease.Held && !l.IsHold {
			word = "CoolDown"
		}
		if l.Superseded {
			word += "*"
		}
		out = append(out, fmt.Sprintf("%s=%s/%s", l.Address, l.Name, word))
	}
	return strings.Join(out, " ")
}

// elsewhere moves the caller into a container, in which it finds no namespace and no process of the
// node, or back.
func (w *world) elsewhere(away bool) {
	w.service.Node.Plugin = !away
	if !away {
		w.netns, w.inPID, w.spaces = w.home.netns, w.home.inPID, ""
		return
	}
	w.home = *w.machine
	w.netns, w.inPID, w.spaces = map[string]uint64{}, map[uint64]bool{}, " elsewhere"
}

// has puts an address on the interface of a sandbox.
func (w *world) has(container, addr string) {
	path := netnsPath(container)
	w.addrs[path] = append(w.addrs[path], netip.MustParseAddr(addr))
}
