package events

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/agent/use"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/built"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
	"github.com/leasehold-cni/leasehold/test/must"
)

const (
	flannel = `{"name":"net","cniVersion":"0.3.1","plugins":[{"type":"flannel","delegate":{}},{"type":"portmap"}]}`
	named   = `{"name":"net","cniVersion":"0.3.1","plugins":[{"type":"flannel","ipam":{"type":"leasehold"},
		"delegate":{}},{"type":"portmap"}]}`
)

// useFixture is a node with a real store and real directories, a clock of its own, and a fake API
// server.
type useFixture struct {
	*use.Watcher
	pods   *retention.Pods
	t      *testing.T
	node   fakeapi.Node
	server *fakeapi.Server
	metric *prometheus.Registry
	now    time.Time
}

func newUseFixture(t *testing.T) *useFixture {
	f := &useFixture{t: t, node: fakeapi.NewNode(t), server: fakeapi.New(t), now: time.Now()}
	conf, bin := t.TempDir(), t.TempDir()
	for name, content := range map[string][]byte{"leasehold": built.Plugin(t), "host-local": []byte("other")} {
		must.Succeed(t, os.WriteFile(filepath.Join(bin, name), content, 0o755))
	}
	f.Watcher = &use.Watcher{ConfDir: conf, Binaries: cniconf.Binaries{bin}}
	f.configure(named)
	f.restart()
	return f
}

// restart starts an agent without state.
func (f *useFixture) restart() {
	shared := retention.NewNode(f.node.Service, nil, fakeapi.Log, "node1", f.server.Clients)
	if f.pods == nil {
		f.pods = shared.Pods
	}
	shared.Pods = f.pods
	task := &Task{Node: shared}
	f.Watcher = &use.Watcher{Service: f.node.Service, Node: "node1", Log: fakeapi.Log, ConfDir: f.ConfDir,
		Binaries: f.Binaries, Pods: task.Retained, Report: func(statuses []cniconf.Status, now time.Time) {
			task.InUse(statuses, now)
			task.pass(context.Background())
		}}
	f.metric = prometheus.NewRegistry()
	f.Register(f.metric)
}

// configure writes flannel's configuration as its container does: over the same file.
func (f *useFixture) configure(content string) {
	f.t.Helper()
	must.Succeed(f.t, os.WriteFile(filepath.Join(f.ConfDir, "10-flannel.conflist"), []byte(content), 0o644))
}

func apiPod(name, uid, annotation, ip string, started time.Time) *corev1.Pod {
	p := fakeapi.Pod(name, uid, annotation)
	p.Status.StartTime = &metav1.Time{Time: started}
	if ip != "" {
		p.Status.PodIPs = []corev1.PodIP{{IP: ip}}
	}
	return p
}

// plug makes a network namespace with an interface that has an address, as a sandbox has.
func (f *useFixture) plug(name, address string) {
	f.t.Helper()
	path := filepath.Join(f.t.TempDir(), "netns")
	must.Succeed(f.t, os.WriteFile(path, nil, 0o600))
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends, and the mount keeps its namespace
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: "peer"}
		ip := &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(address), Mask: net.CIDRMask(24, 32)}}
		err := unix.Unshare(unix.CLONE_NEWNET)
		for _, step := range []func() error{func() error { return netlink.LinkAdd(link) },
			func() error { return netlink.AddrAdd(link, ip) },
			func() error { return unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "") }} {
			if err == nil {
				err = step()
			}
		}
		ended <- err
	}()
	must.Succeed(f.t, <-ended, "needs root, as make test does:")
	f.t.Cleanup(func() { _ = unix.Unmount(path, unix.MNT_DETACH) })
}

func (f *useFixture) setPods(pods ...*corev1.Pod) {
	f.t.Helper()
	var objects []any
	for _, p := range pods {
		objects = append(objects, p)
	}
	must.Succeed(f.t, f.pods.Replace(objects, ""))
}

// run lets time pass, with a check every 5 s.
func (f *useFixture) run(d time.Duration) {
	for end := f.now.Add(d); !f.now.After(end); f.now = f.now.Add(5 * time.Second) {
		f.Check(context.Background(), f.now)
	}
}

// events returns what the Events say, such as "Warning RetentionInactive Pod db-0: FlannelDefault".
func (f *useFixture) events() []string {
	f.t.Helper()
	var out []string
	for _, at := range f.server.Paths() {
		var e eventsv1.Event
		f.server.Get(at, &e)
		_, rest, _ := strings.Cut(e.Note, "retained: ")
		cause, _, _ := strings.Cut(rest, ":")
		out = append(out, fmt.Sprintf("%s %s %s %s/%s: %s",
			e.Type, e.Reason, e.Regarding.Kind, e.Namespace, e.Regarding.Name, cause))
	}
	slices.Sort(out)
	return out
}

// expect checks the value of the metric ("" for none), and the Events.
func (f *useFixture) expect(name, metric string, events ...string) {
	f.t.Helper()
	want := ""
	if metric != "" {
		network, value, _ := strings.Cut(metric, "=")
		want = "# HELP leasehold_retention_active Whether leasehold serves a network (1) or not (0). " +
			"There is no value while that is not known.\n# TYPE leasehold_retention_active gauge\n" +
			fmt.Sprintf("leasehold_retention_active{network=%q,node=\"node1\"} %s\n", network, value)
	}
	must.Succeed(f.t, testutil.GatherAndCompare(f.metric, strings.NewReader(want)), name)
	check.Slices(f.t, f.events(), events, name, "Events")
}

const (
	nodeOff = "Warning RetentionInactive Node default/node1: "
	podOff  = "Warning RetentionInactive Pod db/db-0: "
)

// A healthy node with pods that come and go, in the order in which the API shows that, and other
// pods beside them.
func TestHealthyNodeStaysActive(t *testing.T) {
	f := newUseFixture(t)
	for n := range 100 {
		uid := fmt.Sprint("u", n)
		f.now = f.now.Add(time.Minute)
		l := f.node.Bind("10.0.0.2", "db-0", uid, time.Hour, "")
		own := apiPod("db-0", uid, "1h", "10.0.0.2", f.now)
		starting := apiPod("db-1", "s"+uid, "1h", "", f.now)
		host := apiPod("db-2", "h"+uid, "1h", "192.0.2.1", f.now)
		host.Spec.HostNetwork = true
		ended := apiPod("db-3", "e"+uid, "1h", "10.0.0.9", f.now)
		ended.Status.Phase = corev1.PodSucceeded
		f.setPods(own, starting, host, ended, apiPod("web", "w"+uid, "", "10.0.0.9", f.now),
			apiPod("zero", "z"+uid, "0", "10.0.0.9", f.now))
		f.run(time.Minute)
		f.node.Release(l) // before the API says that the pod is gone
		f.run(time.Minute)
		f.setPods()
	}
	f.expect("100 pods later", "net=1")
}

func TestFlannelsManifestIsAppliedAgain(t *testing.T) {
	f := newUseFixture(t)
	f.setPods(apiPod("db-0", "u0", "1h", "10.0.0.2", f.now.Add(-time.Hour)),
		apiPod("web", "w", "", "10.0.0.3", f.now),
		apiPod("bad", "b", "soon", "10.0.0.4", f.now))
	f.run(time.Minute)
	f.expect("before", "net=1")
	of := f.Result()[0]
	pool := lease.Pool{DataDir: policy.DefaultDataDir, Network: "net"}
	served := []maintain.Served{{Scope: operation.Existing(pool, of.Sets), Since: of.Since}}
	if got := f.Served(); !reflect.DeepEqual(got, served) || got[0].Since.IsZero() {
		t.Errorf("serves %v, want %v", got, served)
	}
	f.configure(flannel)
	f.run(20 * time.Second)
	check.Empty(t, f.Served(), "flannel's configuration names host-local")
	off := []string{nodeOff + "FlannelDefault", podOff + "FlannelDefault"}
	f.expect("after 20 s", "net=0", off...)
	var e eventsv1.Event
	f.server.Get(f.server.Paths()[0], &e)
	check.Contains(t, e.Note, f.ConfDir+"/10-flannel.conflist names no IPAM")
	check.Contains(t, e.Note, "network net")
	f.run(40 * time.Minute)
	f.expect("40 minutes later", "net=0", off...)
	f.run(40 * time.Minute)
	f.expect("repeated after an hour", "net=0", off[0], off[0], off[1], off[1])
	f.configure(named)
	f.run(5 * time.Second)
	f.expect("configured again", "net=1", off[0], off[0], off[1], off[1])
	f.run(2 * time.Hour)
	f.expect("and then", "net=1", off[0], off[0], off[1], off[1])
}

func TestRestartedAgentRepeatsNoEvent(t *testing.T) {
	f := newUseFixture(t)
	f.configure(flannel)
	f.setPods(apiPod("db-0", "u0", "1h", "", f.now))
	for range 3 {
		f.run(time.Minute)
		f.restart()
	}
	f.run(time.Minute)
	f.expect("after three restarts", "net=0", nodeOff+"FlannelDefault", podOff+"FlannelDefault")
}

// A package replaces a file in several steps, and a container writes a configuration in several.
func TestShortGapIsNotReported(t *testing.T) {
	f := newUseFixture(t)
	f.run(time.Minute)
	for range 10 {
		f.configure("{")
		f.run(5 * time.Second)
		f.configure(named)
		f.run(5 * time.Second)
	}
	f.expect("gaps", "net=1")
}

// The configuration that the agent reads names leasehold, and the runtime reads another one.
func TestPodWithoutLease(t *testing.T) {
	f := newUseFixture(t)
	f.run(time.Minute)
	f.plug("eth0", "10.0.0.3")
	late := f.now
	f.setPods(apiPod("db-0", "u0", "1h", "10.0.0.2", f.now.Add(-time.Hour)),
		apiPod("db-1", "u1", "1h", "10.0.0.3", late))
	f.run(25 * time.Second)
	f.expect("25 s later", "net=0", nodeOff+"PodWithoutLease", podOff+"PodWithoutLease",
		"Warning RetentionInactive Pod db/db-1: PodWithoutLease")
	if s := f.Result()[0]; !strings.Contains(s.Message, "pod db/db-1") || !strings.Contains(s.Message, "10-flannel") {
		t.Errorf("message %q, want the newer pod, and the file", s.Message)
	}
	for _, at := range f.server.Paths() {
		var e eventsv1.Event
		f.server.Get(at, &e)
		if e.Regarding.Kind == "Pod" && strings.Contains(e.Note, "db-1") {
			t.Errorf("an Event on %s, which may be another user's, names the pod: %s", e.Regarding.Name, e.Note)
		}
	}
	f.node.Bind("10.0.0.3", "db-1", "u1", time.Hour, "")
	f.run(0)
	check.Equal(t, f.Result()[0].State, cniconf.Active, "with a lease:", f.Result())
}

// TestForgedAddress has users write the status of their pods, with an address that no sandbox of
// the node has, or that is on another interface than a sandbox's first one.
func TestForgedAddress(t *testing.T) {
	f := newUseFixture(t)
	f.run(time.Minute)
	f.plug("net1", "10.0.0.9")
	f.setPods(apiPod("db-0", "u0", "1h", "10.0.0.8", f.now), apiPod("db-1", "u1", "1h", "10.0.0.9", f.now))
	f.run(time.Minute)
	f.expect("forged", "net=1")
}

// A lease that was imported from host-local's file names no pod.
func TestLeaseOfTheAddressIsEnough(t *testing.T) {
	f := newUseFixture(t)
	f.node.Bind("10.0.0.2", "", "", 0, "")
	f.setPods(apiPod("db-0", "u0", "1h", "10.0.0.2", f.now.Add(time.Minute)))
	f.run(10 * time.Minute)
	f.expect("imported", "net=1")
}

// A pod that started while another configuration was there has no lease, and is no evidence
// against the one that is there now. The configuration's file may be older than the pod.
func TestPodOfAnEarlierConfiguration(t *testing.T) {
	f := newUseFixture(t)
	f.run(time.Minute)
	first := filepath.Join(f.ConfDir, "05-other.conflist")
	must.Succeed(t, os.WriteFile(first, []byte(flannel), 0o644))
	f.run(time.Minute)
	f.setPods(apiPod("db-0", "u0", "1h", "10.0.0.2", f.now))
	f.run(time.Minute)
	must.Succeed(t, os.Remove(first))
	f.run(10 * time.Minute)
	check.Equal(t, f.Result()[0].State, cniconf.Active, f.Result())
	f.plug("eth0", "10.0.0.2")
	f.setPods(apiPod("db-0", "u1", "1h", "10.0.0.2", f.now.Add(-time.Minute)))
	f.run(time.Minute)
	check.Equal(t, f.Result()[0].Reason, use.PodWithoutLease, "a pod that started after the change:", f.Result())
}

// What cannot be read is neither active nor inactive.
func TestUnreadableIsUnknown(t *testing.T) {
	f := newUseFixture(t)
	f.run(time.Minute)
	path := filepath.Join(f.ConfDir, "10-flannel.conflist")
	must.Succeed(t, os.Rename(path, path+".away"))
	must.Succeed(t, os.Symlink("/proc/self/mem", path))
	f.run(time.Minute)
	unknown := "Warning RetentionUnknown Node default/node1: "
	f.expect("the configuration", "", unknown)
	if s := f.Result()[0]; s.State != cniconf.Unknown || s.Reason != cniconf.ConfigurationUnreadable {
		t.Errorf("%+v", s)
	}
}

// TestLostStoreIsNoEvidence verifies that a pod without a lease is no sign of another plugin while
// a store that replaced a lost one does not know the network's leases again.
func TestLostStoreIsNoEvidence(t *testing.T) {
	f := newUseFixture(t)
	f.node.Bind("10.0.0.2", "db-0", "u0", time.Hour, "")
	must.Succeed(t, os.Remove(filepath.Join(f.node.Node.Store.Dirs().State, "leases.db")))
	f.node.Update(func(tx *store.Tx) error { return tx.BeginBoot("b") }) // replaces it
	f.plug("eth0", "10.0.0.2")
	f.setPods(apiPod("db-0", "u0", "1h", "10.0.0.2", f.now.Add(time.Minute)))
	f.run(10 * time.Minute)
	f.expect("lost", "net=1")
	f.node.Update(func(tx *store.Tx) error {
		return tx.SetImported(lease.Pool{DataDir: f.node.Pool.DataDir, Network: "net"})
	})
	f.run(10 * time.Minute)
	check.Equal(t, f.Result()[0].State, cniconf.Inactive, "its leases are known again, and the pod has none")
}
