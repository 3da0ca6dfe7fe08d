package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
)

const hour = time.Hour

// eventsOf prints the journal of an address.
func (w *world) eventsOf(addr string) string {
	var out []string
	w.view(func(tx *store.Tx) {
		for _, n := range tx.Entries(0) {
			if n.Address == netip.MustParseAddr(addr) {
				out = append(out, string(n.Event))
			}
		}
	})
	return strings.Join(out, " ")
}

// notes are what waits in the announce queue.
func (w *world) notes() string {
	files, _ := os.ReadDir(w.service.Node.Store.Run().Announcements())
	var out []string
	for _, f := range files {
		out = append(out, f.Name())
	}
	return strings.Join(out, " ")
}

func (w *world) macs(container string) string {
	leases, _ := w.service.Bound(context.Background(), on(container, "eth0"))
	var out []string
	for _, l := range leases {
		out = append(out, l.MAC)
	}
	return strings.Join(out, " ")
}

// lockFiles takes host-local's lock of a network, as a host-local that hangs does.
func (w *world) lockFiles(network string) *os.File {
	w.t.Helper()
	lock, err := files.Lock(context.Background(), filepath.Join(w.dataDir, network, "lock"), syscall.LOCK_EX)
	w.must(err)
	w.t.Cleanup(func() { lock.Close() })
	return lock
}

// look returns the leases as the agent publishes them.
func (w *world) look() maintain.NodeView {
	w.t.Helper()
	v, err := w.service.List(context.Background(), func(lease.Lease) bool { return true })
	w.must(err)
	return v
}

func (w *world) follow(uid string, window time.Duration) {
	w.t.Helper()
	w.followPod(maintain.PodWindow{Namespace: "db", Name: "db-0",
		SetWindow: lease.SetWindow{UID: uid, Window: lease.Window(window)}})
}

func (w *world) followPod(pod maintain.PodWindow) {
	w.t.Helper()
	_, err := w.service.Follow(context.Background(), []maintain.PodWindow{pod})
	w.must(err)
}

func (w *world) journal() (words []string) {
	w.t.Helper()
	entries, _, err := w.service.Journal(context.Background(), 0)
	w.must(err)
	for _, n := range entries {
		words = append(words, fmt.Sprintf("%s %s: %s", n.Event, n.Name, n.Reason))
	}
	return words
}

// revokePods revokes the leases of one pod.
func (w *world) revokePods(ctx context.Context, leases ...lease.Lease) error {
	var refs []maintain.Ref
	for _, l := range leases {
		refs = append(refs, maintain.RefTo(l))
	}
	_, err := w.service.RevokePods(ctx, [][]maintain.Ref{refs}, "spec.release")
	return err
}

func (w *world) setLimits(limits policy.Limits) {
	w.t.Helper()
	w.must(w.service.SetLimits(context.Background(), limits))
}

// gc calls GC with a list of valid attachments.
func (w *world) gc(valid ...lease.Attachment) {
	w.t.Helper()
	w.must(w.service.Collect(context.Background(), w.where(), valid))
}

// delOf is the DEL of one interface of a container in the present network.
func (w *world) delOf(container, ifName string) {
	w.t.Helper()
	w.must(w.another().Release(context.Background(), on(container, ifName), w.where()))
}

func (w *world) storeFile() string { return filepath.Join(w.stateDir(), "leases.db") }

// unreadable puts something in the place of an address's file that cannot be read.
func (w *world) unreadable(addr string) {
	w.t.Helper()
	w.wipe(w.path(addr))
	w.must(errors.Join(os.MkdirAll(filepath.Dir(w.path(addr)), 0o755), os.Symlink(addr, w.path(addr))))
}

// stillUnreadable reports that the file was not touched.
func (w *world) stillUnreadable(addr string) {
	w.t.Helper()
	_, err := os.Stat(w.path(addr))
	check.Is(w.t, err, syscall.ELOOP, "the file of", addr)
}

// cached writes libcni's entry of a container, whose addresses are separated by commas, of a pod
// with an annotation and a reservation name if they are given. Its namespace is that of the
// container, or netns=<name>, as of a former life of the container.
func (w *world) cached(container, addrs string, pod ...string) {
	w.t.Helper()
	netns := container
	pod = slices.DeleteFunc(slices.Clone(pod), func(arg string) bool {
		name, found := strings.CutPrefix(arg, "netns=")
		if found {
			netns = name
		}
		return found
	})
	if w.configured == nil {
		w.service.Node.CacheDirs = []string{filepath.Dir(w.cacheFile(container))}
	}
	args := ""
	if len(pod) > 0 {
		args = fmt.Sprintf(`"cniArgs":[["K8S_POD_NAMESPACE","db"],["K8S_POD_NAME",%q],["K8S_POD_UID","uid-of-%s"]],`,
			pod[0], container)
	}
	if len(pod) > 1 {
		name := ""
		if len(pod) > 2 {
			name = fmt.Sprintf(`"leasehold.dev/reserve-as":%q,`, pod[2])
		}
		args += fmt.Sprintf(`"capabilityArgs":{"io.kubernetes.cri.pod-annotations":`+
			`{%s"io.kubernetes.cri/reserved-ip-duration":%q}},`, name, pod[1])
	}
	var ips []string
	for addr := range strings.SplitSeq(addrs, ",") {
		ips = append(ips, fmt.Sprintf(`{"address":"%s/%d"}`, addr, netip.MustParseAddr(addr).BitLen()-8))
	}
	entry := fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"ifName":"eth0","networkName":%q,%s
		"netns":"/run/netns/%s","result":{"ips":[%s]}}`, container, w.network, args, netns, strings.Join(ips, ","))
	w.write(w.cacheFile(container), entry)
}

// ownCache moves libcni's entries to a directory that only the configuration of the network names.
func (w *world) ownCache() {
	w.configured = []string{filepath.Dir(w.cacheFile(""))}
	w.service.Node.CacheDirs = []string{filepath.Join(w.configured[0], "none")}
}

// policies are those of the ipam section.
func (w *world) policies() policy.Config {
	options := w.options
	options.CNICacheDirs = w.configured
	return options
}

// forget fills the journal, so that it knows nothing of what was before.
func (w *world) forget() {
	w.t.Helper()
	err := w.service.Node.Store.Update(context.Background(), func(tx *store.Tx) error {
		for range store.JournalSize + 100 {
			if err := tx.Log(store.Entry{Time: w.now.Wall, Event: store.EventRefused}); err != nil {
				return err
			}
		}
		return nil
	})
	w.must(err)
}

// startedByHostLocal makes a sandbox of a pod to which host-local has given an address: its
// namespace, host-local's file and libcni's entry.
func (w *world) startedByHostLocal(pod, container, addr string) {
	w.t.Helper()
	w.unpack(container)
	for a := range strings.SplitSeq(addr, ",") {
		w.hostLocal(a, container)
	}
	w.cached(container, addr, pod)
}

func (w *world) cacheFile(container string) string {
	return filepath.Join(filepath.Dir(w.dataDir), "results", w.network+"-"+container+"-eth0")
}

// stoppedByHostLocal is what a runtime does whose plugin has stored the configuration of the ADD:
// host-local serves the DEL.
func (w *world) stoppedByHostLocal(container, addr string) {
	w.t.Helper()
	w.wipe(w.path(addr), w.cacheFile(container))
	w.burn(container)
}

// serve is a round of an agent on a node whose configuration has been changed to leasehold after
// all files were written. It returns the plan.
func (w *world) serve() string {
	w.t.Helper()
	plan := w.remember(time.Now().Add(time.Hour))
	_, err := w.service.Act(context.Background(), w.remembered)
	w.must(err)
	return plan
}

// remember is serve, but for the actions: those are performed later. The configuration was changed
// at the time since.
func (w *world) remember(since time.Time) string {
	w.t.Helper()
	_ = w.service.ApplyQueue(context.Background())
	v, err := w.service.Survey(context.Background(),
		maintain.Served{Scope: operation.Existing(w.where().Pool, w.sets), Since: since})
	w.must(errors.Join(err, v.Unsafe))
	w.remembered = maintain.Plan(v)
	return actionsOf(w.remembered)
}

// asAgent makes the world one in which no plugin has run and the agent's view is the machine's.
func (w *world) asAgent() {
	w.service.Node.Plugin, w.first = false, true
}

// names prints the leases with their reservation names: "10.0.0.2=a(registry)/Bound".
func (w *world) names() string {
	var out []string
	for _, l := range w.all() {
		word := l.State.String()
		switch {
		case l.IsHold:
		case l.Leaving:
			word = "Leaving"
		case l.State == lease.Held:
			word = "CoolDown"
		}
		name := l.Name
		if l.ReserveAs != "" {
			name += "(" + l.ReserveAs + ")"
		}
		out = append(out, fmt.Sprintf("%s=%s/%s", l.Address, name, word))
	}
	return strings.Join(out, " ")
}

func (w *world) leaving(pod string) {
	w.t.Helper()
	w.marks(pod, false)
}

func (w *world) marks(pod string, stays bool) {
	w.t.Helper()
	err := w.service.MarkLeaving(context.Background(),
		[]maintain.LeavingPod{{Namespace: "db", Name: pod, Leave: lease.Leave{UID: "uid-of-" + pod, Stays: stays}}})
	w.must(err)
}
