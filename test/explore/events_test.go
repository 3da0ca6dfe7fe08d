package explore

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	hostlocal "github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// kind is the kind of an event.
type kind string

const (
	add         kind = "add"          // leasehold serves an ADD: the first, a retry or a repeated one
	lateAdd     kind = "late add"     // an ADD of a sandbox that has ended
	del         kind = "del"          // leasehold serves a DEL: in time, late or repeated
	stop        kind = "stop"         // a DEL, and the sandbox's namespace ends
	gc          kind = "gc"           // leasehold serves a GC: living sandboxes that had no DEL are valid
	check       kind = "check"        // leasehold serves a CHECK
	unplug      kind = "unplug"       // the address is taken off the interface after a DEL, the process stays
	unplugOne   kind = "unplug one"   // the same with the address of the last range set alone
	end         kind = "end"          // the sandbox's namespace ends
	hide        kind = "hide"         // the namespace is unmounted, with a process in it
	pass        kind = "pass"         // a step of the clocks
	wait        kind = "wait"         // ten minutes of the clocks
	long        kind = "long"         // much more than any window, as in a suspend
	reboot      kind = "reboot"       // an orderly one: everything is synced
	rebootEpoch kind = "reboot epoch" // the same, and the wall clock begins in 1970
	forward     kind = "forward"      // the wall clock is set forward by a step
	back        kind = "back"         // the wall clock is set back by a step
	correct     kind = "correct"      // the wall clock is set to the right time
	powerCut    kind = "power cut"    // files that were not synced are there, missing, or have earlier contents
	agent       kind = "agent"        // a round of the agent
	lose        kind = "lose"         // the store's file is removed
	wipe        kind = "wipe"         // host-local's directory is emptied
	wipePlain   kind = "wipe plain"   // the same by rm *, which leaves what begins with a dot
	wipeOne     kind = "wipe one"     // one file in it is removed
	hostAdd     kind = "host add"     // host-local gives the addresses in an ADD
	hostReady   kind = "host ready"   // the same ADD goes on: the interface has them, and libcni has an entry
	hostDel     kind = "host del"     // host-local serves a DEL
	leave       kind = "leave"        // the pod is being deleted, and its sandbox goes on
	nameFirst   kind = "name first"   // the agent stores the reservation name of a pod that has no sandbox yet
	again       kind = "again"        // a container gets a new sandbox with the same id after its DEL
	restart     kind = "restart"      // the same after a boot, also without a DEL
)

// event is an event of a sandbox or of the node.
type event struct {
	kind    kind
	sandbox int
	// killed is 0, or 1 + the file operation before which the call is killed.
	killed int
	// cut has the choices of a power cut, one for each file that was not synced; or the name of the
	// file that is removed.
	cut string
}

// simulation runs the events of a model on one disk.
type simulation struct {
	config
	*disk
	node
	t    *testing.T
	sets []rangeSet

	records      []record // of the call that is running
	recording    bool     // a call is running whose transactions are recorded
	uncommitted  int      // 1 + the record of the call whose transaction cannot be committed; 0 if there is none
	before       contents // of the store, before the event
	delWasServed bool     // whether the event's sandbox had its DEL answered before
	warned       []string
}

// rangeSet is one range set as leasehold and as host-local see it.
type rangeSet struct {
	lease poolSet
	host  allocator.RangeSet
}

// record is the disk after one transaction of a call, and the file operations up to there.
type record struct {
	ops   []diskOperation
	after image
}

const ifName = "eth0"

func newSimulation(t *testing.T, c config, root string) (*simulation, error) {
	d, err := newDisk(root)
	if err != nil {
		return nil, err
	}
	w := &simulation{config: c, disk: d, node: newNode(c), t: t}
	for _, text := range c.sets {
		w.sets = append(w.sets, parseSet(text))
	}
	return w, nil
}

// verbs and service return what a new process of the plugin and of the agent uses.
func (w *simulation) verbs() *ipam.Service { return &ipam.Service{Node: w.machine()} }

func (w *simulation) service() *maintain.Service { return &maintain.Service{Node: w.machine()} }

func (w *simulation) machine() *operation.Node {
	s := w.openStore(runDir)
	record := func() {
		if w.recording {
			w.record()
		}
	}
	s.Timed = func(time.Duration) { record() }
	return &operation.Node{
		Store: s,
		Host:  kernelHost{&w.kernel, w.config},
		Clock: func() lease.Instant {
			if w.recording && w.uncommitted == len(w.records)+1 {
				w.replaceStore()
			}
			return w.kernel.now()
		},
		CacheDirs: []string{w.path(cacheDir)},
		Warn:      func(s string) { w.warned = append(w.warned, s) },
	}
}

// openStore returns the store with one of the run directories.
func (w *simulation) openStore(run string) *store.Store {
	s := store.New(store.Dirs{State: w.path(stateDir), Run: w.path(run)})
	s.BootID = w.bootID
	return s
}

func (w *simulation) netnsPath(b int) string { return kernelHost{&w.kernel, w.config}.netnsPath(b) }

func (w *simulation) pool() lease.Pool {
	return lease.Pool{DataDir: w.path(netsDir), Network: network}
}

func (w *simulation) request(sandbox int) ipam.Request {
	pod, name := w.podOf(sandbox), w.sandboxName(sandbox)
	r := ipam.Request{
		Pool: w.pool(), ContainerID: name, IfName: ifName, NetnsPath: w.netnsPath(sandbox),
		Pod:     ipam.Pod{Namespace: tenant, Name: w.podNameOf(sandbox), UID: "uid-" + w.uidOf(sandbox)},
		Options: w.options(),
	}
	if p := w.pods[pod]; !p.agentOnly {
		r.Retention = policy.Request{Known: true, Window: lease.Window(p.window), ReserveAs: p.reserveAs}
	}
	r.Sets = w.leaseSets()
	return r
}

func (w *simulation) leaseSets() (out []poolSet) {
	for _, s := range w.sets {
		out = append(out, s.lease)
	}
	return out
}

// recorded records the transactions of a call until end is called.
func (w *simulation) recorded() (end func()) {
	w.records, w.recording = nil, true
	return func() { w.recording = false }
}

// record records what a call has done in a transaction and after it, see splitRecords.
func (w *simulation) record() {
	if ops := w.operations(); len(ops) > 0 {
		w.records = append(w.records, record{ops, w.capture(w.kernel.now().Wall)})
	}
}

// recordRest records what follows the last transaction of an event.
func (w *simulation) recordRest() {
	w.record()
	w.capture(w.kernel.now().Wall)
}

// outcome is the result of a call.
type outcome struct {
	addrs [maxSets]netip.Addr
	err   error
}

// do runs an event. Time passes before it, so that no two events have the same time.
//
// The event runs in a synctest bubble, in which time passes only while the event waits: what it
// does depends on the state, and not on how fast the machine is.
func (w *simulation) do(e event) outcome {
	before := w.current
	w.kernel.pass(moment)
	w.records = nil
	var out outcome
	synctest.Test(w.t, func(*testing.T) { out = w.run(e) })
	w.recordRest()
	w.noteUnsynced(before, e)
	return out
}

func (w *simulation) run(e event) (out outcome) {
	defer w.showCache()()
	switch e.kind {
	case add, lateAdd:
		return w.assign(e.sandbox)
	case del:
		out.err = w.release(e.sandbox)
	case stop:
		out.err = w.release(e.sandbox)
		w.end(e.sandbox)
	case gc:
		out.err = w.collect()
	case check:
		out.err = w.verbs().Verify(context.Background(), w.request(e.sandbox))
	case hostAdd:
		w.create(e.sandbox)
		return w.hostAssign(e.sandbox)
	case hostDel:
		out.err = w.hostRelease(e.sandbox)
	case agent:
		out.err = w.round()
	case nameFirst:
		out.err = w.storeName(e.sandbox)
	default:
		w.runOther(e)
	}
	return out
}

// runOther runs the events that are not calls.
func (w *simulation) runOther(e event) {
	switch e.kind {
	case unplug:
		w.spaces[e.sandbox].addrs = [maxSets]netip.Addr{}
	case unplugOne:
		w.spaces[e.sandbox].addrs[len(w.sets)-1] = netip.Addr{}
	case end:
		w.end(e.sandbox)
	case hostReady:
		w.spaces[e.sandbox].addrs = w.sandboxes[e.sandbox].addrs
	case again, restart:
		w.spaces[e.sandbox] = namespace{}
	case hide:
		w.spaces[e.sandbox].phase = hidden
	case leave:
		w.sandboxes[e.sandbox].leaves = true
	case pass:
		w.pass(step)
	case wait:
		w.pass(tenMinutes)
	case long:
		w.pass(10 * window)
	case reboot, rebootEpoch:
		w.reboot()
		if e.kind == rebootEpoch {
			w.wall = -began.Sub(time.Unix(1000, 0))
		}
		w.clearRun()
	case forward:
		w.wall += step
	case back:
		w.wall -= step
	case correct:
		w.wall = w.elapsed
	case powerCut:
		w.reboot()
		w.clearRun()
		w.cutPower(e)
	case lose:
		must(os.Remove(w.path(storeFile)))
	case wipe, wipePlain:
		w.wipe(e)
	case wipeOne:
		must(os.Remove(w.path(e.cut)))
	}
}

func (w *simulation) clearRun() {
	must(os.RemoveAll(w.path("run/announce")))
	for _, dir := range []string{runDir, queueDir} {
		w.remove(dir, func(string) bool { return true })
	}
}

func (w *simulation) wipe(e event) {
	w.remove(mirrorDir, func(name string) bool { return e.kind == wipe || name[0] != '.' })
}

// remove removes the files of a directory.
func (w *simulation) remove(dir string, which func(name string) bool) {
	entries, err := os.ReadDir(w.path(dir))
	must(err)
	for _, e := range entries {
		if !e.IsDir() && which(e.Name()) {
			must(os.Remove(w.path(filepath.Join(dir, e.Name()))))
		}
	}
}

// assign is leasehold's ADD. A runtime creates the sandbox's namespace before the first.
func (w *simulation) assign(sandbox int) (out outcome) {
	if w.spaces[sandbox].phase == notCreated {
		w.create(sandbox)
	}
	defer w.recorded()()
	r, err := w.verbs().Assign(context.Background(), w.request(sandbox))
	for i, a := range r.Addresses {
		out.addrs[i] = a.Address.Addr()
	}
	out.err = err
	return out
}

func (w *simulation) release(sandbox int) error {
	defer w.recorded()()
	return w.verbs().Release(context.Background(), w.attachment(sandbox), w.where())
}

// collect is a GC.
func (w *simulation) collect() error {
	var valid []lease.Attachment
	for b := range w.sandboxCount() {
		if w.isValid(b) {
			valid = append(valid, w.attachment(b))
		}
	}
	defer w.recorded()()
	return w.verbs().Collect(context.Background(), w.where(), valid)
}

// isValid reports whether a runtime lists a sandbox as valid.
func (w *simulation) isValid(b int) bool { return w.spaces[b].alive() && !w.sandboxes[b].deleted }

func (w *simulation) attachment(sandbox int) lease.Attachment {
	return lease.Attachment{ContainerID: w.sandboxName(sandbox), IfName: ifName}
}

func (w *simulation) where() operation.Scope {
	in := operation.Existing(w.pool(), w.leaseSets())
	in.CoolDown = w.options().CoolDown
	return in
}

// round is one round of the agent.
func (w *simulation) round() error {
	defer w.recorded()()
	s := w.service()
	surveys := 1
	if w.imports {
		surveys = 2 // an import is a change: windows apply to the new leases, and what was unknown may be certain
	}
	for range surveys {
		if _, err := s.Follow(context.Background(), append(w.annotations(), w.namedAnnotations()...)); err != nil {
			return err
		}
		if err := s.MarkLeaving(context.Background(), w.leavingPods()); err != nil {
			return err
		}
		v, err := s.Survey(context.Background(), w.servedPools()...)
		if errors.Is(err, store.ErrLost) {
			return nil // it logs that, and surveys again
		}
		if err != nil {
			return err
		}
		// The steps of a plan may share transactions; here each has its own.
		for _, action := range maintain.Plan(v) {
			if _, err := s.Act(context.Background(), []maintain.Action{action}); err != nil {
				return err
			}
		}
	}
	v, err := s.Survey(context.Background(), w.servedPools()...)
	if err != nil {
		return err
	}
	for _, left := range maintain.Plan(v) {
		return fmt.Errorf("%w: %s %s: %s", errUnsettled, left.Do, left.Lease.Address, left.Reason)
	}
	return nil
}

// servedPools returns the pools that the configuration of the runtime leads to. It is newer than
// all files, by the simulated clock and by the machine's.
func (w *simulation) servedPools() (out []maintain.Served) {
	if w.imports {
		out = append(out, maintain.Served{Scope: operation.Existing(w.pool(), nil), Since: began.AddDate(100, 0, 0)})
	}
	return out
}

// showCache writes libcni's entries, which are part of the state of the node (entry), and returns a
// function that removes them.
func (w *simulation) showCache() (remove func()) {
	if !w.imports {
		return func() {}
	}
	must(os.MkdirAll(w.path(cacheDir), 0o700))
	for b, entry := range w.entries[:w.sandboxCount()] {
		if !entry.addrs[0].IsValid() {
			continue
		}
		name, pod := w.sandboxName(b), w.podOf(b)
		var ips []string
		for _, a := range entry.addrs[:len(w.sets)] {
			ips = append(ips, fmt.Sprintf(`{"address":"%s/24"}`, a))
		}
		content := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"ifName":%q,"networkName":%q,"netns":%q,%s
			"cniArgs":[["K8S_POD_NAMESPACE",%q],["K8S_POD_NAME",%q],["K8S_POD_UID",%q]],"result":{"ips":[%s]}}`,
			name, ifName, network, entry.netns, cachedAnnotations(w.pods[pod]), tenant, w.podNameOf(b),
			"uid-"+w.uidOf(b), strings.Join(ips, ","))
		path := w.path(filepath.Join(cacheDir, network+"-"+name+"-"+ifName))
		must(os.WriteFile(path, []byte(content), 0o600))
		at := began.Add(entry.wall)
		must(os.Chtimes(path, at, at))
	}
	return func() { must(os.RemoveAll(w.path(cacheDir))) }
}

// cachedAnnotations returns what libcni's entry has of the annotations of a pod, if the runtime
// passes them.
func cachedAnnotations(p podConfig) string {
	if p.agentOnly || p.window == 0 {
		return ""
	}
	name := ""
	if p.reserveAs != "" {
		name = fmt.Sprintf(`,"leasehold.dev/reserve-as":%q`, p.reserveAs)
	}
	return fmt.Sprintf(`"capabilityArgs":{"io.kubernetes.cri.pod-annotations":`+
		`{"io.kubernetes.cri/reserved-ip-duration":"%d"%s}},`, p.window/time.Minute, name)
}

// errUnsettled is the error of a round of the agent after which a plan is not empty.
var errUnsettled = errors.New("the next round would have something to do")

// annotations returns the annotations of the pods that only the agent sees.
func (w *simulation) annotations() (out []maintain.PodWindow) {
	for p, c := range w.pods {
		if b := w.newest(p); c.agentOnly && c.reserveAs == "" && w.isValid(b) {
			out = append(out, maintain.PodWindow{
				Namespace: tenant, Name: podName(p), SetWindow: lease.SetWindow{UID: "uid-" + w.uidOf(b),
					Window: lease.Window(c.window)},
			})
		}
	}
	return out
}

// newest returns the sandbox of a pod that was created last, the first one if none was.
func (w *simulation) newest(pod int) int {
	b := (pod+1)*w.perPod - 1
	for b > pod*w.perPod && w.spaces[b].phase == notCreated {
		b--
	}
	return b
}

// hostAssign is host-local's ADD: its own code, as its main calls it.
func (w *simulation) hostAssign(sandbox int) (out outcome) {
	s, err := hostlocal.New(network, w.path(netsDir))
	if err != nil {
		return outcome{err: err}
	}
	defer s.Close()
	for i, set := range w.sets {
		got, err := allocator.NewIPAllocator(&set.host, s, i).Get(w.sandboxName(sandbox), ifName, nil)
		if err != nil {
			for j := range i {
				_ = allocator.NewIPAllocator(&w.sets[j].host, s, j).Release(w.sandboxName(sandbox), ifName)
			}
			return outcome{err: err}
		}
		out.addrs[i], _ = netip.AddrFromSlice(got.Address.IP)
		out.addrs[i] = out.addrs[i].Unmap()
	}
	return out
}

func (w *simulation) hostRelease(sandbox int) error {
	s, err := hostlocal.New(network, w.path(netsDir))
	if err != nil {
		return err
	}
	defer s.Close()
	var failed error
	for i, set := range w.sets {
		failed = errors.Join(failed, allocator.NewIPAllocator(&set.host, s, i).Release(w.sandboxName(sandbox), ifName))
	}
	return failed
}

func (e event) String() string { return fmt.Sprint(string(e.kind), e.sandbox, e.killed, e.cut) }
