package publish

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
	"github.com/leasehold-cni/leasehold/test/must"
)

const (
	group         = "/apis/ipam.leasehold.dev/v1alpha1/"
	objects       = group + "namespaces/db/ipreservations/"
	poolPath      = group + "nodeaddresspools/node1"
	nodePath      = "/api/v1/nodes/node1"
	namespacePath = "/api/v1/namespaces/db"
	mine          = "db-0-5f1c9a02"
	writing       = "writing reservation db/" + mine
)

// fixture is a publisher that is driven pass by pass, with a fake API server and a store that knows
// ten addresses of one network.
type fixture struct {
	*Publisher
	t       *testing.T
	node    fakeapi.Node
	server  *fakeapi.Server
	metrics *prometheus.Registry
	log     bytes.Buffer
	now     time.Time
	next    time.Duration // until the next pass, as the last one returned it
	all     []string      // requests of the last pass
	isLate  bool          // the watch of the NodeAddressPool has not delivered what has changed
}

var tenAddresses = pool.Set{{Start: netip.MustParseAddr("10.0.0.2"), End: netip.MustParseAddr("10.0.0.11")}}

func newFixture(t *testing.T) *fixture {
	p := &fixture{t: t, node: fakeapi.NewNode(t), server: fakeapi.New(t), now: time.Now()}
	p.setNode(node.UID)
	p.setNamespace("ns1")
	p.node.Update(func(tx *store.Tx) error { return tx.SetRanges(p.node.Pool, []pool.Set{tenAddresses}) })
	p.restart()
	return p
}

// setNode creates the node, or replaces it by another one of that name.
func (p *fixture) setNode(uid string) { p.server.PutCore("Node", "node1", uid) }

// setNamespace creates the namespace db, or replaces it by another one of that name.
func (p *fixture) setNamespace(uid string) { p.server.PutCore("Namespace", "db", uid) }

// restart replaces the publisher by one that knows nothing.
func (p *fixture) restart() {
	p.metrics = prometheus.NewRegistry()
	log := slog.New(slog.NewTextHandler(&p.log, nil))
	p.Publisher = &Publisher{Node: retention.NewNode(p.node.Service, nil, log, "node1", p.server.Clients),
		Pool: NewPool(p.server.Clients.IPAM, "node1"), Active: func() []cniconf.Status { return nil },
		Writes: NewWrites(p.metrics)}
}

// after advances the clock.
func (p *fixture) after(d time.Duration) {
	p.now = p.now.Add(d)
	clock := p.Service.Node.Clock
	p.Service.Node.Clock = func() lease.Instant {
		now := clock()
		now.Wall, now.Boot = now.Wall.Add(d), now.Boot+d
		return now
	}
}

// publish runs a pass and returns its writes of reservations, each as the method and the last
// element of the path. The watch has delivered the NodeAddressPool before, unless isLate is true.
func (p *fixture) publish() []string {
	p.t.Helper()
	if o := (&ipamv1.NodeAddressPool{}); !p.isLate {
		deliver := func() error { return p.Pool.Replace(nil, "") }
		if p.server.Get(poolPath, o) {
			deliver = func() error { return p.Pool.Update(o) }
		}
		must.Succeed(p.t, deliver())
	}
	p.server.Requests()
	p.next = p.pass(p.t.Context(), p.now)
	p.all = p.server.Requests()
	return p.writes(objects)
}

// writes returns the writes of the last pass to objects whose paths begin with a prefix.
func (p *fixture) writes(prefix string) (writes []string) {
	for _, r := range p.all {
		if method, at, _ := strings.Cut(r, " "); method != http.MethodGet && strings.HasPrefix(at, prefix) {
			writes = append(writes, method+" "+path.Base(at))
		}
	}
	return writes
}

// reads returns the reads of reservations of the last pass.
func (p *fixture) reads() (reads []string) {
	for _, r := range p.all {
		if at, isRead := strings.CutPrefix(r, "GET "+group); isRead {
			reads = append(reads, at)
		}
	}
	return reads
}

// reject has the API server respond with a code to the requests that match.
func (p *fixture) reject(code int, matches func(*http.Request) bool) {
	p.server.Reject(func(r *http.Request) int {
		if matches(r) {
			return code
		}
		return 0
	})
}

// at matches the requests of a path.
func at(path string) func(*http.Request) bool {
	return func(r *http.Request) bool { return r.URL.Path == path }
}

// list makes the next pass list the reservations.
func (p *fixture) list() { p.listAt = time.Time{} }

func (p *fixture) expect(name string, got []string, want ...string) {
	p.t.Helper()
	check.Slices(p.t, got, want, name, "requests")
}

func (p *fixture) state(name string) string {
	var r ipamv1.IPReservation
	if !p.server.Get(objects+name, &r) {
		return "none"
	}
	return fmt.Sprint(r.Status.State, " ", r.Status.AddressList)
}

func TestLifeOfAReservation(t *testing.T) {
	p := newFixture(t)
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.reject(http.StatusForbidden, func(r *http.Request) bool { return path.Base(r.URL.Path) == resource })
	p.expect("the objects are not listed yet", p.publish())
	p.server.Reject(nil)
	p.after(2 * time.Second)
	p.expect("a new lease", p.publish(), "PATCH "+mine, "PATCH status")
	check.Equal(t, p.state(mine), "Bound 10.0.0.2")
	p.expect("no change", p.publish())
	p.node.Release(l)
	p.after(ipamv1.ReturnDelay)
	p.expect("held", p.publish(), "PATCH status")
	check.Equal(t, p.state(mine), "Held 10.0.0.2")
	p.server.Remove(objects + mine)
	p.list()
	p.expect("a user deleted the object", p.publish(), "PATCH "+mine, "PATCH status")
	p.node.Update(func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, lease.Lease{}) })
	p.expect("the window has ended", p.publish(), "DELETE "+mine)
	p.expect("no change", p.publish())
}

// A pod that returns to its address within ipamv1.ReturnDelay costs one write, when it is Ready. If
// it takes longer, there is one when its former pod has gone, too.
func TestWritesOfARecreation(t *testing.T) {
	for name, isLate := range map[string]bool{"at once": false, "later": true} {
		t.Run(name, func(t *testing.T) { testWritesOfARecreation(t, isLate) })
	}
}

func testWritesOfARecreation(t *testing.T, isLate bool) {
	p := newFixture(t)
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.publish()
	p.node.Release(l)
	p.after(ipamv1.ReturnDelay - time.Second)
	p.expect("away", p.publish())
	if isLate {
		check.Equal(t, p.next, time.Second+10*time.Millisecond, "the time until the next pass")
		p.after(time.Second)
		p.expect("held", p.publish(), "PATCH status")
		check.Equal(t, p.state(mine), "Held 10.0.0.2")
	}
	returned, err := lease.Apply(lease.Lease{}, lease.Bind{Lease: lease.Lease{
		ID: l.ID, Pool: l.Pool, Address: l.Address, Set: "s",
		Namespace: "db", Name: "db-0", UID: "u2", Window: l.Window, CoolDown: time.Minute,
		Holder: lease.Holder{ContainerID: "c-u2", IfName: "eth0", BootID: fakeapi.Boot,
			Netns: lease.Netns{Path: "/does-not-exist", Dev: 4, Ino: 6}}}}, p.node.Node.Clock())
	must.Succeed(t, err)
	p.node.Update(func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, returned) })
	p.expect("bound", p.publish())
	ready := fakeapi.Pod("db-0", "u2", "")
	ready.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	must.Succeed(t, p.Pods.Replace([]any{ready}, ""))
	p.expect("Ready", p.publish(), "PATCH status")
	var r ipamv1.IPReservation
	p.server.Get(objects+mine, &r)
	if r.Status.State != ipamv1.Bound || r.Status.PodUID != "u2" || !r.Status.Confirmed {
		t.Errorf("%+v", r.Status)
	}
	p.expect("no change", p.publish())
}

// A missing object of a pod that is away may have been deleted with its namespace: then the holds
// end. The hold of db-0 is of the namespace ns1, of that of db-1 the namespace is not known.
func TestHoldsEndWithTheirNamespace(t *testing.T) {
	const second = "db-1-5f1c9a02"
	write := func(names ...string) (writes []string) {
		for _, name := range names {
			writes = append(writes, "PATCH "+name, "PATCH status")
		}
		return writes
	}
	for name, tt := range map[string]struct {
		uid  string   // of the namespace that exists now
		code int      // of the response to a read of it, if it is not 0
		want []string // writes
		held int
	}{
		"it exists":                {uid: "ns1", want: write(mine, second), held: 2},
		"it is gone":               {},
		"another one has its name": {uid: "ns2", want: write(second), held: 1},
		"it cannot be read":        {code: http.StatusServiceUnavailable, held: 2},
		"something else answers":   {code: fakeapi.NotServed, held: 2},
	} {
		p := newFixture(t)
		for i, uid := range []string{"ns1", ""} {
			l := p.node.Bind(fmt.Sprint("10.0.0.", 2+i), fmt.Sprint("db-", i), fmt.Sprint("u", i), time.Hour, "")
			l.NamespaceUID = uid
			p.node.Release(l)
		}
		p.publish()
		check.Equal(t, len(p.known), 2, name, "objects")
		p.server.Requests()
		p.publish()
		check.Empty(t, p.all, name, "requests without a change")
		p.server.Remove(objects + mine)
		p.server.Remove(objects + second)
		if p.server.Remove(namespacePath); tt.uid != "" {
			p.setNamespace(tt.uid)
		}
		p.reject(tt.code, at(namespacePath))
		p.list()
		writes := p.publish()
		slices.Sort(writes)
		slices.Sort(tt.want)
		p.expect(name, writes, tt.want...)
		check.Equal(t, len(p.node.Leases()), tt.held, name, p.node.Leases())
	}
}

// A hold that cannot be ended, because it is not proven that the agent sees the host, keeps nothing
// from being written. The reason is logged once, and shown by the metric.
func TestAHoldThatCannotBeEnded(t *testing.T) {
	p := newFixture(t)
	p.Problem.Failing = prometheus.NewGauge(prometheus.GaugeOpts{})
	p.publish()
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	l.NamespaceUID = "a former one"
	p.node.Release(l)
	p.node.Update(func(tx *store.Tx) error { return tx.SetNamespaceIDs("boot-1 another") })
	for i, want := range []string{"db-1-5f1c9a02", "db-2-5f1c9a02"} {
		p.node.Bind(fmt.Sprint("10.0.0.", 3+i), fmt.Sprint("db-", 1+i), fmt.Sprint("v", i), time.Hour, "")
		p.after(10 * time.Minute)
		p.expect("a new lease", p.publish(), "PATCH "+want, "PATCH status")
		if pool := p.writes(poolPath); len(pool) == 0 || testutil.ToFloat64(p.Problem.Failing) != 1 {
			t.Errorf("writes of the pool: %q; the metric: %v", pool, testutil.ToFloat64(p.Problem.Failing))
		}
	}
	if n := strings.Count(p.log.String(), "level=WARN"); n != 1 || !strings.Contains(p.log.String(), "db/"+mine) ||
		!strings.Contains(p.log.String(), operation.ErrNoHostView.Error()) {
		t.Errorf("%d warnings: %s", n, p.log.String())
	}
	p.node.Update(func(tx *store.Tx) error {
		return tx.SetNamespaceIDs(p.node.Node.Host.NamespaceIDs(fakeapi.Boot))
	})
	p.after(10 * time.Minute)
	p.expect("the view is proven", p.publish())
	if leases := p.node.Leases(); len(leases) != 2 || testutil.ToFloat64(p.Problem.Failing) != 0 {
		t.Errorf("leases %v; the metric: %v", leases, testutil.ToFloat64(p.Problem.Failing))
	}
}

func TestUnknownStateChangesNothing(t *testing.T) {
	for name, breakIt := range map[string]func(*fixture){
		"the store is lost": func(p *fixture) {
			must.Succeed(t, os.Truncate(p.db(), 100))
		},
		"the store was replaced by an empty one": func(p *fixture) {
			must.Succeed(t, os.Truncate(p.db(), 100))
			p.node.Update(func(*store.Tx) error { return nil })
		},
		"the store was removed at boot, and only another network imported": func(p *fixture) {
			must.Succeed(t, errors.Join(os.Remove(p.db()), os.RemoveAll(p.node.Node.Store.Dirs().Run)))
			p.node.Update(func(tx *store.Tx) error {
				return tx.SetImported(lease.Pool{DataDir: p.node.Pool.DataDir, Network: "another"})
			})
		},
		"the node does not exist": func(p *fixture) { p.server.Remove(nodePath) },
		"the node has another UID": func(p *fixture) {
			p.setNode("0a0a0a0a-1")
			p.node.Update(func(tx *store.Tx) error {
				return tx.Put(p.node.Pool, netip.MustParseAddr("10.0.0.2"), lease.Lease{})
			})
		},
	} {
		p := newFixture(t)
		p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
		p.publish()
		breakIt(p)
		p.nodeAt = time.Time{}
		p.expect(name, p.publish())
		check.Equal(t, p.state(mine), "Bound 10.0.0.2", name)
	}
}

// What an earlier installation on this node has published, and this one does not have, is removed.
func TestReservationOfAFormerInstallation(t *testing.T) {
	for name, tt := range map[string]struct {
		state  cniconf.State
		change func(*fixture)
		want   []string
	}{
		"nothing is known":                       {"", nil, nil},
		"leasehold does not serve the network":   {cniconf.Inactive, nil, nil},
		"leasehold has never served the network": {cniconf.Active, nil, []string{"DELETE " + mine}},
		"it serves pods that were running before": {cniconf.Active, func(p *fixture) {
			ids := p.node.Node.Host.NamespaceIDs(fakeapi.Boot)
			p.node.Update(func(tx *store.Tx) error { return tx.SetNamespaceIDs(ids) })
			p.node.Bind("10.0.0.3", "db-1", "u3", 0, "")
		}, []string{"DELETE " + mine}},
		"it has served the network, and the store is gone": {cniconf.Active, func(p *fixture) {
			dir := hostlocal.Path(p.node.Pool)
			err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/.leasehold", nil, 0o600),
				os.WriteFile(dir+"/lock", nil, 0o600))
			must.Succeed(t, err)
		}, nil},
		"the store is lost": {cniconf.Active, func(p *fixture) {
			p.node.Update(func(*store.Tx) error { return nil })
			must.Succeed(t, os.Truncate(p.db(), 100))
			p.node.Update(func(*store.Tx) error { return nil })
		}, nil},
	} {
		p := newFixture(t)
		p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
		p.publish()
		dirs := p.node.Node.Store.Dirs()
		if err := errors.Join(os.RemoveAll(dirs.State), os.RemoveAll(dirs.Run)); err != nil { // uninstalled
			t.Fatal(err)
		}
		p.Active = func() []cniconf.Status {
			if tt.state == "" {
				return nil
			}
			return []cniconf.Status{{Network: p.node.Pool.Network, Pool: p.node.Pool, State: tt.state}}
		}
		if tt.change != nil {
			tt.change(p)
		}
		p.expect(name, p.publish(), tt.want...)
	}
}

func (p *fixture) db() string { return p.node.Node.Store.Dirs().State + "/leases.db" }

// An object that the API server rejects is written again after a pause that grows, or after the
// next list, and does not keep others from being written.
func TestRejectedWrites(t *testing.T) {
	for _, part := range []string{mine, "status"} {
		p := newFixture(t)
		p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
		p.reject(http.StatusForbidden, func(r *http.Request) bool {
			return strings.HasPrefix(r.URL.Path, objects+mine) && path.Base(r.URL.Path) == part
		})
		first := []string{"PATCH " + mine}
		if part == "status" {
			first = append(first, "PATCH status")
		}
		again := []string{"PATCH " + part}
		p.expect("rejected", p.publish(), first...)
		for _, least := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			after := p.pauses[writing].until.Sub(p.now)
			if after < least*time.Second || after > 2*least*time.Second {
				t.Fatalf("repeated after %s, want %d to %d s", after, least, 2*least)
			}
			p.after(after - 1)
			p.expect("waiting", p.publish())
			p.after(1)
			p.expect("repeated", p.publish(), again...)
		}
		p.node.Bind("10.0.0.3", "db-1", "u2", time.Hour, "")
		p.expect("another object", p.publish(), "PATCH db-1-5f1c9a02", "PATCH status")
		p.list()
		p.expect("a new list", p.publish(), again...)
		p.server.Reject(nil)
		p.list()
		if p.publish(); p.state(mine) != "Bound 10.0.0.2" || len(p.pauses) > 0 {
			t.Errorf("accepted: %s, %v", p.state(mine), p.pauses)
		}
		p.expect("no change", p.publish())
	}
}

// While the API server does not answer, there are two requests in each pause, and one if it has too
// many, whatever changes.
func TestServerThatIsAway(t *testing.T) {
	for code, limit := range map[int]time.Duration{http.StatusServiceUnavailable: 5 * time.Second,
		http.StatusTooManyRequests: time.Minute} {
		p := newFixture(t)
		p.publish()
		p.server.Reject(fakeapi.Always(code))
		p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
		p.node.Bind("10.0.0.3", "db-1", "u2", time.Hour, "")
		for range 10 {
			if p.publish(); len(p.all) < 1 || len(p.all) > 2 || code == http.StatusTooManyRequests && len(p.all) > 1 {
				t.Errorf("%d: requests %q", code, p.all)
			}
			p.node.Bind("10.0.0.4", "db-2", "u3", time.Hour, "")
			p.publish()
			check.Empty(t, p.all, code, "requests in a pause")
			p.after(p.next)
		}
		check.Between(t, p.next, limit-time.Second, 2*limit, code, "the longest pause")
		p.server.Reject(nil)
		if writes := p.publish(); len(writes) != 6 || len(p.pauses) > 0 {
			t.Errorf("%d: back: %q, %v", code, writes, p.pauses)
		}
	}
}

// An object that the API server does not answer for, or for which a webhook fails, keeps no other
// from being written, nor the NodeAddressPool.
func TestObjectWithoutAnAnswer(t *testing.T) {
	for _, code := range []int{http.StatusInternalServerError, http.StatusServiceUnavailable} {
		p := newFixture(t)
		for i := range 5 {
			p.node.Bind(fmt.Sprint("10.0.0.", 2+i), fmt.Sprint("db-", i), fmt.Sprint("u", i), time.Hour, "")
		}
		p.reject(code, func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, objects+mine) })
		if writes := p.publish(); len(writes) != 9 || len(p.writes(poolPath)) != 2 {
			t.Errorf("writes %q, %q", writes, p.writes(poolPath))
		}
		for range 10 {
			p.after(p.pauses[writing].until.Sub(p.now))
			p.expect("repeated", p.publish(), "PATCH "+mine)
		}
		check.Between(t, p.pauses[writing].until.Sub(p.now), 5*time.Second, 10*time.Second)
	}
}

// A CRD of an older version drops unknown fields. Writing them again would have no effect either.
func TestApplyWithoutEffectIsNotRepeated(t *testing.T) {
	p := newFixture(t)
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.publish()
	p.server.Drop("addressList")
	var r ipamv1.IPReservation
	p.server.Get(objects+mine, &r)
	r.Status.AddressList = ""
	p.server.Put(objects+mine, r)
	p.list()
	p.expect("first attempt", p.publish(), "PATCH status")
	p.expect("not repeated", p.publish())
	p.node.Release(l)
	p.after(ipamv1.ReturnDelay)
	p.expect("another change", p.publish(), "PATCH status")
	p.expect("not repeated", p.publish())
	check.Equal(t, p.state(mine), "Held ")
	p.server.Drop("")
	p.list()
	p.expect("a new list: the CRD may have changed", p.publish(), "PATCH status")
	check.Equal(t, p.state(mine), "Held 10.0.0.2")
	p.expect("no change", p.publish())
}

// The node's UID is read once an hour, and soon if the API server may have another node.
func TestIdentify(t *testing.T) {
	p := newFixture(t)
	read := func() bool { p.publish(); return slices.Contains(p.all, "GET "+nodePath) }
	if !read() || p.Publisher.node != node || p.nodeAt.Sub(p.now) < identityInterval ||
		p.nodeAt.Sub(p.now) > identityInterval*6/5 {
		t.Errorf("%+v, again after %s", p.Publisher.node, p.nodeAt.Sub(p.now))
	}
	if read() {
		t.Error("it is read again")
	}
	reject := func(code int) {
		p.nodeAt = time.Time{}
		p.reject(code, at(nodePath))
	}
	reject(http.StatusInternalServerError)
	if !read() || p.Publisher.node != node || p.nodeAt.Sub(p.now) < identityInterval {
		t.Errorf("a failed read of a known UID: %+v", p.Publisher.node)
	}
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	reject(http.StatusNotFound)
	for range 10 {
		if !read() || p.Publisher.node != (nodeIdentity{}) || len(p.all) > 1 {
			t.Errorf("no node: %+v, requests %q", p.Publisher.node, p.all)
		}
		p.after(p.next)
	}
	check.Between(t, p.next, time.Minute, 2*time.Minute, "after many failed reads")
	p.server.Reject(nil)
	p.expect("the node is back", p.publish(), "PATCH "+mine, "PATCH status")
}

// An object is ours if both the name and the UID of the node are. What has the label of this node
// and is another one's is not taken for one of this node: such a label may be forged.
func TestOnlyOurObjectsAreRemoved(t *testing.T) {
	for name, tt := range map[string]struct {
		node, uid string
		want      []string
		known     int
	}{
		"ours":                      {node.Name, node.UID, []string{"DELETE " + mine}, 0},
		"another node":              {"node2", node.UID, nil, 0},
		"another node of that name": {node.Name, "other", nil, 1},
	} {
		p := newFixture(t)
		p.server.Put(objects+mine, ipamv1.IPReservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: mine,
			Labels: map[string]string{ipamv1.LabelNodeHash: node.UID}},
			Spec: ipamv1.IPReservationSpec{PodName: "db-0", NodeName: tt.node, NodeUID: tt.uid}})
		if p.expect(name, p.publish(), tt.want...); p.known == nil || len(p.known) != tt.known {
			t.Errorf("%s: %v are known", name, p.known)
		}
	}
}
