package publish

import (
	"bytes"
	"context"
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
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/leasehold-cni/leasehold/pkg/agent/podcache"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

const (
	objects  = "/apis/ipam.leasehold.dev/v1alpha1/namespaces/db/ipreservations/"
	nodePath = "/api/v1/nodes/node1"
)

// fixture is a publisher that is driven step by step, with a fake API server.
type fixture struct {
	*Publisher
	t       *testing.T
	node    fakeapi.Node
	server  *fakeapi.Server
	metrics *prometheus.Registry
	delayed []time.Duration // of the objects that were added to the queue with a delay
}

func newFixture(t *testing.T) *fixture {
	n, server := fakeapi.NewNode(t), fakeapi.New(t)
	server.Put(nodePath, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "node1",
		UID: types.UID(node.UID)}})
	metrics := prometheus.NewRegistry()
	p := &fixture{t: t, node: n, server: server, metrics: metrics, Publisher: &Publisher{
		Service: n.Service, Node: "node1", Core: server.Clients.Core, Pods: podcache.New(server.Clients.Core, "node1"),
		Objects: NewObjects(server.Clients.IPAM, "node1", NewPool(server.Clients.IPAM, "node1"), fakeapi.Log),
		Active:  func() []cniconf.Status { return nil },
		Log:     fakeapi.Log,
		Metrics: NewMetrics(metrics),
	}}
	p.begin()
	t.Cleanup(p.queue.ShutDown)
	p.queue = noDelayed{p.queue, &p.delayed}
	return p
}

// noDelayed is a queue that records what is added with a delay instead of adding it.
type noDelayed struct {
	workqueue.TypedDelayingInterface[informer.Name]
	delayed *[]time.Duration
}

func (q noDelayed) AddAfter(_ informer.Name, after time.Duration) {
	*q.delayed = append(*q.delayed, after)
}

// after advances the clock.
func (p *fixture) after(d time.Duration) { advance(p.Service, d) }

// list delivers the list of a new watch.
func (p *fixture) list() {
	var all []any
	for _, at := range p.server.Paths() {
		if name, ok := strings.CutPrefix(at, objects); ok {
			r := &ipamv1.IPReservation{}
			p.server.Get(objects+name, r)
			all = append(all, r)
		}
	}
	if err := p.Objects.Replace(all, ""); err != nil {
		p.t.Fatal(err)
	}
}

// publish runs a pass and processes the queue. It returns the requests, each as its method and the
// last element of its path.
func (p *fixture) publish() []string {
	p.t.Helper()
	p.server.Requests()
	p.identify(p.t.Context())
	p.pass(p.t.Context())
	for p.queue.Len() > 0 {
		p.work(p.t.Context())
	}
	var requests []string
	for _, a := range p.server.Requests() {
		if method, at, _ := strings.Cut(a, " "); at != nodePath {
			requests = append(requests, method+" "+path.Base(at))
		}
	}
	return requests
}

func (p *fixture) expect(name string, got []string, want ...string) {
	p.t.Helper()
	if !slices.Equal(got, want) {
		p.t.Errorf("%s: requests %q, want %q", name, got, want)
	}
}

func (p *fixture) state(name string) string {
	var r ipamv1.IPReservation
	if !p.server.Get(objects+name, &r) {
		return "none"
	}
	return fmt.Sprint(r.Status.State, " ", r.Status.AddressList)
}

const mine = "db-0-5f1c9a02"

func TestLifeOfAReservation(t *testing.T) {
	p := newFixture(t)
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.expect("the objects are not listed yet", p.publish())
	p.list()
	p.expect("a new lease", p.publish(), "PATCH "+mine, "PATCH status")
	if got := p.state(mine); got != "Bound 10.0.0.2" {
		t.Error(got)
	}
	p.expect("no change", p.publish())
	p.node.Release(l)
	p.after(ipamv1.ReturnDelay)
	p.expect("held", p.publish(), "PATCH status")
	if got := p.state(mine); got != "Held 10.0.0.2" {
		t.Error(got)
	}
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
	p.list()
	p.publish()
	p.node.Release(l)
	p.after(ipamv1.ReturnDelay - time.Second)
	p.expect("away", p.publish())
	if isLate {
		if after := p.pass(t.Context()); after != time.Second+10*time.Millisecond {
			t.Errorf("the next pass is after %s, want 1.01 s", after)
		}
		p.after(time.Second)
		p.expect("held", p.publish(), "PATCH status")
		if got := p.state(mine); got != "Held 10.0.0.2" {
			t.Error(got)
		}
	}
	returned, err := lease.Apply(lease.Lease{}, lease.Bind{ID: l.ID, Pool: l.Pool, Address: l.Address, Set: "s",
		Namespace: "db", Name: "db-0", UID: "u2", Window: l.Window, Soft: time.Minute,
		Holder: lease.Holder{ContainerID: "c-u2", IfName: "eth0", BootID: fakeapi.Boot,
			Netns: lease.Netns{Path: "/does-not-exist", Dev: 4, Ino: 6}}}, p.node.Clock())
	if err != nil {
		t.Fatal(err)
	}
	p.node.Update(func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, returned) })
	p.expect("bound", p.publish())
	ready := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db-0", UID: "u2", ResourceVersion: "1"}}
	ready.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if err := p.Pods.Replace([]any{ready}, ""); err != nil {
		t.Fatal(err)
	}
	p.expect("Ready", p.publish(), "PATCH status")
	var r ipamv1.IPReservation
	p.server.Get(objects+mine, &r)
	if r.Status.State != ipamv1.Bound || r.Status.PodUID != "u2" || !r.Status.Confirmed {
		t.Errorf("%+v", r.Status)
	}
	p.expect("no change", p.publish())
}

func TestUnknownStateChangesNothing(t *testing.T) {
	for name, breakIt := range map[string]func(*fixture){
		"the store is lost": func(p *fixture) {
			if err := os.Truncate(p.db(), 100); err != nil {
				t.Fatal(err)
			}
		},
		"the store was replaced by an empty one": func(p *fixture) {
			if err := os.Truncate(p.db(), 100); err != nil {
				t.Fatal(err)
			}
			p.node.Update(func(*store.Tx) error { return nil })
		},
		"the store was removed at boot, and only another network adopted": func(p *fixture) {
			if err := errors.Join(os.Remove(p.db()), os.RemoveAll(p.node.Store.Dirs().Run)); err != nil {
				t.Fatal(err)
			}
			p.node.Update(func(tx *store.Tx) error {
				return tx.SetAdopted(lease.Pool{DataDir: p.node.Pool.DataDir, Network: "another"})
			})
		},
		"the node does not exist": func(p *fixture) { p.server.Remove(nodePath) },
		"the node has another UID": func(p *fixture) {
			p.server.Put(nodePath,
				metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "0a0a0a0a-1"}})
			p.node.Update(func(tx *store.Tx) error {
				return tx.Put(p.node.Pool, netip.MustParseAddr("10.0.0.2"), lease.Lease{})
			})
		},
	} {
		p := newFixture(t)
		p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
		p.list()
		p.publish()
		breakIt(p)
		p.expect(name, p.publish())
		if got := p.state(mine); got != "Bound 10.0.0.2" {
			t.Errorf("%s: %s", name, got)
		}
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
			ids := p.node.Host.NamespaceIDs(fakeapi.Boot)
			p.node.Update(func(tx *store.Tx) error { return tx.SetNamespaceIDs(ids) })
			p.node.Bind("10.0.0.3", "db-1", "u3", 0, "")
		}, []string{"DELETE " + mine}},
		"it has served the network, and the store is gone": {cniconf.Active, func(p *fixture) {
			dir := hostlocal.Path(p.node.Pool)
			err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(dir+"/.leasehold", nil, 0o600),
				os.WriteFile(dir+"/lock", nil, 0o600))
			if err != nil {
				t.Fatal(err)
			}
		}, nil},
		"the store is lost": {cniconf.Active, func(p *fixture) {
			p.node.Update(func(*store.Tx) error { return nil })
			if err := os.Truncate(p.db(), 100); err != nil {
				t.Fatal(err)
			}
			p.node.Update(func(*store.Tx) error { return nil })
		}, nil},
	} {
		p := newFixture(t)
		p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
		p.list()
		p.publish()
		dirs := p.node.Store.Dirs()
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

func (p *fixture) db() string { return p.node.Store.Dirs().State + "/leases.db" }

func TestRejectedWriteWaitsForANewList(t *testing.T) {
	p := newFixture(t)
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.list()
	p.server.Reject(writes(http.StatusForbidden))
	p.expect("rejected", p.publish(), "PATCH "+mine)
	p.expect("waiting", p.publish())
	p.list()
	p.expect("a new list", p.publish(), "PATCH "+mine)
	p.server.Reject(nil)
	p.list()
	p.expect("accepted", p.publish(), "PATCH "+mine, "PATCH status")
	p.expect("no change", p.publish())
}

func TestRejectedStatusWaitsForANewList(t *testing.T) {
	p := newFixture(t)
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.list()
	p.server.Reject(func(r *http.Request) int {
		if strings.HasSuffix(r.URL.Path, "/status") {
			return http.StatusForbidden
		}
		return 0
	})
	p.expect("rejected", p.publish(), "PATCH "+mine, "PATCH status")
	p.expect("waiting", p.publish())
	p.server.Reject(nil)
	p.list()
	p.expect("a new list", p.publish(), "PATCH status")
}

// The task itself: it writes what the plan says, and ends with its workers.
func TestRun(t *testing.T) {
	p := newFixture(t)
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.list()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx, nil) }()
	fakeapi.Until(t, "the lease is published", func() bool { return p.state(mine) == "Bound 10.0.0.2" })
	stop()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("a worker goes on")
	}
}

// A pass that cannot read the leases is repeated after retry.
func TestUnreadableStoreIsReadAgain(t *testing.T) {
	p := newFixture(t)
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.list()
	p.publish()
	if err := os.Truncate(p.db(), 100); err != nil {
		t.Fatal(err)
	}
	if after := p.pass(t.Context()); after != retry {
		t.Errorf("requeue after %s, want %s", after, retry)
	}
}

// writes rejects all requests except GET.
func writes(code int) func(*http.Request) int {
	return func(r *http.Request) int {
		if r.Method == http.MethodGet {
			return 0
		}
		return code
	}
}

func TestBackoff(t *testing.T) {
	p := newFixture(t)
	for err, want := range map[error]time.Duration{errors.New("connection refused"): 5 * time.Second,
		&rejection{}: time.Minute, apierrors.NewTooManyRequests("too many requests", 1): time.Minute} {
		var after time.Duration
		for range 12 {
			after = p.backoff(informer.Name{Name: "a"}, err)
		}
		if after < want || after > 2*want {
			t.Errorf("%v: again after %s, want %s to twice that", err, after, want)
		}
		p.backoff(informer.Name{Name: "a"}, nil)
	}
}

type rejection struct{}

func (rejection) Status() metav1.Status {
	return metav1.Status{Reason: metav1.StatusReasonForbidden, Code: 403}
}
func (rejection) Error() string { return "forbidden" }

// Another controller's condition causes no write.
func TestConditionsOfOthers(t *testing.T) {
	p := newFixture(t)
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.list()
	p.publish()
	var r ipamv1.IPReservation
	p.server.Get(objects+mine, &r)
	r.Status.Conditions = []metav1.Condition{{Type: "Audited", Status: metav1.ConditionTrue}}
	p.server.Put(objects+mine, r)
	p.list()
	p.expect("another controller's condition", p.publish())
}

// A CRD of an older version drops unknown fields. Writing them again would have no effect either.
func TestApplyWithoutEffectIsNotRepeated(t *testing.T) {
	p := newFixture(t)
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.list()
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
	p.expect("another change", p.publish(), "PATCH status")
	p.expect("its first attempt", p.publish(), "PATCH status")
	p.expect("not repeated", p.publish())
	if got := p.state(mine); got != "Held " {
		t.Error(got)
	}
	p.list()
	p.expect("a new list: the CRD may have changed", p.publish(), "PATCH status")
	at := p.Service.Clock()
	p.Service.Clock = func() lease.Instant { return at }
	p.list()
	p.expect("another list", p.publish(), "PATCH status")
	if after := p.pass(t.Context()); after < noEffectInterval || after > 2*noEffectInterval {
		t.Errorf("requeue after %s", after)
	}
	p.server.Drop("")
	pass := func(d time.Duration) { at.Wall, at.Boot = at.Wall.Add(d), at.Boot+d }
	pass(noEffectInterval - 1)
	p.expect("noEffectInterval has not passed", p.publish())
	pass(1)
	p.expect("the CRD has changed, without a new list", p.publish(), "PATCH status")
	if got := p.state(mine); got != "Held 10.0.0.2" {
		t.Error(got)
	}
	p.expect("no change", p.publish())
}

// A problem that stops every pass is logged when it begins and when it ends.
func TestProblemsAreLoggedOnce(t *testing.T) {
	p := newFixture(t)
	var out bytes.Buffer
	p.Log = slog.New(slog.NewTextHandler(&out, nil))
	p.node.Release(p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, ""))
	p.list()
	p.publish()
	var r ipamv1.IPReservation
	p.server.Get(objects+mine, &r)
	r.Spec.Release = r.Status.ID
	p.server.Put(objects+mine, r)
	p.list()
	logged := func(name, want string, n int) {
		t.Helper()
		for range 3 {
			p.publish()
		}
		if got := strings.Count(out.String(), want); got != n {
			t.Errorf("%s: %q is logged %d times:\n%s", name, want, got, &out)
		}
	}
	p.node.Update(func(tx *store.Tx) error { return tx.SetNamespaceIDs(fakeapi.Boot + " elsewhere") })
	if after := p.pass(t.Context()); after != retry {
		t.Errorf("requeue after %s, want %s", after, retry)
	}
	logged("the agent does not see the host", "releasing addresses failed", 1)
	p.server.Remove(objects + mine)
	p.list()
	logged("no release requested", "works again", 1)
	p.server.Put(objects+mine, r)
	p.list()
	logged("the problem is back", "releasing addresses failed", 2)
}

// An object may be up to date, or deleted, by the time a worker takes it from the queue.
func TestUpToDateObjectIsNotWritten(t *testing.T) {
	p := newFixture(t)
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.list()
	p.publish()
	p.queue.Add(informer.Name{Namespace: "db", Name: mine})
	p.queue.Add(informer.Name{Namespace: "db", Name: "gone"})
	p.expect("up to date", p.publish())
	if len(p.noEffect) > 0 {
		t.Errorf("recorded as without effect: %v", p.noEffect)
	}
}

// A pass does not wait for the read of the node, which may take until the request times out.
func TestPassDoesNotReadTheNode(t *testing.T) {
	p := newFixture(t)
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.list()
	if after := p.identify(t.Context()); after < identityInterval || after > identityInterval*6/5 {
		t.Errorf("the node is read again after %s, want %s", after, identityInterval)
	}
	p.server.Requests()
	p.pass(t.Context())
	if requests := p.server.Requests(); len(requests) > 0 {
		t.Errorf("requests in a pass: %q", requests)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.identify(ctx) // fails: the UID stays
	if p.Publisher.node.UID != node.UID {
		t.Errorf("the node is %+v", p.Publisher.node)
	}
}
