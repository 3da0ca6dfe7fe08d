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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/apitest"
	"github.com/leasehold-cni/leasehold/pkg/kube/live"
	"github.com/leasehold-cni/leasehold/pkg/kube/nodepods"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

const (
	objects  = "/apis/ipam.leasehold.dev/v1alpha1/namespaces/db/ipreservations/"
	nodePath = "/api/v1/nodes/node1"
)

// press is a publisher that takes its steps one by one, in a cluster that is played.
type press struct {
	*Publisher
	t      *testing.T
	node   apitest.Node
	server *apitest.Server
}

func newPress(t *testing.T) *press {
	n, server := apitest.NewNode(t), apitest.New(t)
	server.Put(nodePath, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: types.UID(node.UID)}})
	p := &press{t: t, node: n, server: server, Publisher: &Publisher{
		Service: n.Service, Node: "node1", Core: server.Clients.Core, Pods: nodepods.New(server.Clients.Core, "node1", apitest.Log),
		Objects: NewObjects(server.Clients.IPAM, "node1", apitest.Log), Log: apitest.Log, Metrics: NewMetrics(prometheus.NewRegistry()),
	}}
	p.begin()
	t.Cleanup(p.queue.ShutDown)
	p.queue = noTurns{p.queue}
	return p
}

// noTurns is a queue in which nothing that waits has its turn within a test.
type noTurns struct {
	workqueue.TypedDelayingInterface[live.Name]
}

func (noTurns) AddAfter(live.Name, time.Duration) {}

// list is what the watch would bring when it begins.
func (p *press) list() {
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

// publish takes one pass, and all that is due after it; it returns what was asked of the server, by its last word.
func (p *press) publish() []string {
	p.t.Helper()
	p.server.Asked()
	p.identify(p.t.Context())
	p.pass(p.t.Context())
	for p.queue.Len() > 0 {
		p.work(p.t.Context())
	}
	var asked []string
	for _, a := range p.server.Asked() {
		if method, at, _ := strings.Cut(a, " "); at != nodePath {
			asked = append(asked, method+" "+path.Base(at))
		}
	}
	return asked
}

func (p *press) expect(story string, got []string, want ...string) {
	p.t.Helper()
	if !slices.Equal(got, want) {
		p.t.Errorf("%s: asked for %q, want %q", story, got, want)
	}
}

func (p *press) state(name string) string {
	var r ipamv1.IPReservation
	if !p.server.Get(objects+name, &r) {
		return "none"
	}
	return fmt.Sprint(r.Status.State, " ", r.Status.AddressList)
}

const mine = "db-0-5f1c9a02"

func TestALeaseIsPublishedFollowedAndTakenBack(t *testing.T) {
	p := newPress(t)
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.expect("nothing is known of what is published", p.publish())
	p.list()
	p.expect("a new lease", p.publish(), "PATCH "+mine, "PATCH status")
	if got := p.state(mine); got != "Bound 10.0.0.2" {
		t.Error(got)
	}
	p.expect("again", p.publish())
	p.node.Release(l)
	p.expect("held", p.publish(), "PATCH status")
	if got := p.state(mine); got != "Held 10.0.0.2" {
		t.Error(got)
	}
	p.server.Remove(objects + mine)
	p.list()
	p.expect("somebody deletes it", p.publish(), "PATCH "+mine, "PATCH status")
	p.node.Update(func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, lease.Lease{}) })
	p.expect("its window has ended", p.publish(), "DELETE "+mine)
	p.expect("again", p.publish())
}

func TestALookThatFailsChangesNothing(t *testing.T) {
	for story, breakIt := range map[string]func(*press){
		"the store is lost": func(p *press) {
			if err := os.Truncate(p.db(), 100); err != nil {
				t.Fatal(err)
			}
		},
		"and replaced by one that knows nothing yet": func(p *press) {
			if err := os.Truncate(p.db(), 100); err != nil {
				t.Fatal(err)
			}
			p.node.Update(func(*store.Tx) error { return nil })
		},
		"it was gone after a boot, and another network is used": func(p *press) {
			if err := errors.Join(os.Remove(p.db()), os.RemoveAll(p.node.Store.Dirs().Run)); err != nil {
				t.Fatal(err)
			}
			p.node.Update(func(tx *store.Tx) error {
				return tx.SetKnown(lease.Pool{DataDir: p.node.Pool.DataDir, Network: "another"})
			})
		},
		"the node is not there": func(p *press) { p.server.Remove(nodePath) },
		"the node is another": func(p *press) {
			p.server.Put(nodePath, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "0a0a0a0a-1"}})
			p.node.Update(func(tx *store.Tx) error { return tx.Put(p.node.Pool, netip.MustParseAddr("10.0.0.2"), lease.Lease{}) })
		},
	} {
		p := newPress(t)
		p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
		p.list()
		p.publish()
		breakIt(p)
		p.expect(story, p.publish())
		if got := p.state(mine); got != "Bound 10.0.0.2" {
			t.Errorf("%s: %s", story, got)
		}
	}
}

func (p *press) db() string { return p.node.Store.Dirs().State + "/leases.db" }

func TestWhatIsRefusedWaitsForItsTurnOrANewList(t *testing.T) {
	p := newPress(t)
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.list()
	p.server.Refuse(writes(http.StatusForbidden))
	p.expect("refused", p.publish(), "PATCH "+mine)
	p.expect("it waits", p.publish())
	p.list()
	p.expect("a new list", p.publish(), "PATCH "+mine)
	p.server.Refuse(nil)
	p.list()
	p.expect("it is taken", p.publish(), "PATCH "+mine, "PATCH status")
	p.expect("all is well", p.publish())
}

// writes refuses what is no question.
func writes(code int) func(*http.Request) int {
	return func(r *http.Request) int {
		if r.Method == http.MethodGet {
			return 0
		}
		return code
	}
}

func TestAServerThatIsAwayIsAskedSoonerThanOneThatSaysNo(t *testing.T) {
	p := newPress(t)
	away := errors.New("connection refused")
	var last, no time.Duration
	for range 12 {
		last = p.count(live.Name{Name: "a"}, away)
		no = p.count(live.Name{Name: "b"}, &refusal{})
	}
	if last > 3*time.Second || no < 30*time.Second {
		t.Errorf("away: again in %s; refused: again in %s", last, no)
	}
}

type refusal struct{}

func (refusal) Status() metav1.Status {
	return metav1.Status{Reason: metav1.StatusReasonForbidden, Code: 403}
}
func (refusal) Error() string { return "no" }

// Another controller's condition stays, and is no reason to write.
func TestOthersConditionsAreLeftAlone(t *testing.T) {
	p := newPress(t)
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.list()
	p.publish()
	var r ipamv1.IPReservation
	p.server.Get(objects+mine, &r)
	r.Status.Conditions = []metav1.Condition{{Type: "Audited", Status: metav1.ConditionTrue}}
	p.server.Put(objects+mine, r)
	p.list()
	p.expect("a condition of somebody's", p.publish())
}

// A CRD of an older version drops what it does not know. To write that again would not help.
func TestWhatCannotBeBroughtRightIsWrittenOnce(t *testing.T) {
	p := newPress(t)
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.list()
	p.publish()
	p.server.Drop("addressList")
	var r ipamv1.IPReservation
	p.server.Get(objects+mine, &r)
	r.Status.AddressList = ""
	p.server.Put(objects+mine, r)
	p.list()
	p.expect("it is tried", p.publish(), "PATCH status")
	p.expect("once", p.publish())
	p.node.Release(l)
	p.expect("something else has changed", p.publish(), "PATCH status")
	p.expect("tried", p.publish(), "PATCH status")
	p.expect("once", p.publish())
	if got := p.state(mine); got != "Held " {
		t.Error(got)
	}
	p.list()
	p.expect("a new list: the CRD may be another", p.publish(), "PATCH status")
	p.expect("once", p.publish())
	if again := p.pass(t.Context()); again < vainFor || again > 2*vainFor {
		t.Errorf("the next pass is in %s", again)
	}
	p.server.Drop("")
	clock := p.Service.Clock
	p.Service.Clock = func() lease.Instant {
		now := clock()
		now.Wall, now.Boot = now.Wall.Add(2*vainFor), now.Boot+2*vainFor
		return now
	}
	p.expect("the CRD is another, and no list has said so", p.publish(), "PATCH status")
	if got := p.state(mine); got != "Held 10.0.0.2" {
		t.Error(got)
	}
	p.expect("all is well", p.publish())
}

// What stops every pass is said when it comes, changes and goes.
func TestTroubleIsSaidOnce(t *testing.T) {
	p := newPress(t)
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
	said := func(story, want string, n int) {
		t.Helper()
		for range 3 {
			p.publish()
		}
		if got := strings.Count(out.String(), want); got != n {
			t.Errorf("%s: %q is said %d times:\n%s", story, want, got, &out)
		}
	}
	p.node.Update(func(tx *store.Tx) error { return tx.SetSpaces(apitest.Boot + " elsewhere") })
	said("the host cannot be seen", "cannot be given up yet", 1)
	p.server.Remove(objects + mine)
	p.list()
	said("nothing is to be given up", "is over", 1)
	p.server.Put(objects+mine, r)
	p.list()
	said("it comes again", "cannot be given up yet", 2)
}

// What is queued may have been done, or undone, by its turn.
func TestAnObjectThatIsAsItShouldBeIsLeftAlone(t *testing.T) {
	p := newPress(t)
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.list()
	p.publish()
	p.queue.Add(live.Name{Namespace: "db", Name: mine})
	p.queue.Add(live.Name{Namespace: "db", Name: "gone"})
	p.expect("nothing is to be done", p.publish())
	if len(p.vain) > 0 {
		t.Errorf("applied in vain: %v", p.vain)
	}
}

// Where packets are lost an answer takes its time. Passes do not wait for it.
func TestWhoTheNodeIsIsNotAskedInAPass(t *testing.T) {
	p := newPress(t)
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.list()
	p.identify(t.Context())
	p.server.Asked()
	p.pass(t.Context())
	if asked := p.server.Asked(); len(asked) > 0 {
		t.Errorf("a pass asks for %q", asked)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p.identify(ctx) // no answer: it is who it was
	if p.Publisher.node.UID != node.UID {
		t.Errorf("it is %+v", p.Publisher.node)
	}
}
