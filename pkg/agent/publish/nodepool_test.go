package publish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

const poolPath = "/apis/ipam.leasehold.dev/v1alpha1/nodeaddresspools/node1"

// poolFixture is a NodePool that is driven pass by pass, with a fake API server. Its store knows
// ten addresses of one network.
type poolFixture struct {
	*NodePool
	t      *testing.T
	node   fakeapi.Node
	uid    string // of the node
	server *fakeapi.Server
	log    bytes.Buffer

	isBehind bool
	lost     int // calls of Lost
	rereads  int // calls of Reread
}

func newPoolFixture(t *testing.T) *poolFixture {
	p := &poolFixture{t: t, node: fakeapi.NewNode(t), server: fakeapi.New(t)}
	p.uid = node.UID
	p.node.Update(func(tx *store.Tx) error { return tx.SetRanges(p.node.Pool, []pool.Set{tenAddresses}) })
	p.restart()
	return p
}

var tenAddresses = pool.Set{{Start: netip.MustParseAddr("10.0.0.2"), End: netip.MustParseAddr("10.0.0.11")}}

// restart replaces the task by one that knows nothing.
func (p *poolFixture) restart() {
	p.NodePool = &NodePool{Service: p.node.Service, Node: "node1", Clients: p.server.Clients,
		Pool: NewPool(p.server.Clients.IPAM, "node1"),
		UID:  func() string { return p.uid }, Reread: func() { p.rereads++ },
		Active: func() []cniconf.Status { return nil }, Lost: func() { p.lost++ },
		Log: slog.New(slog.NewTextHandler(&p.log, nil))}
}

// after advances the clock.
func (p *poolFixture) after(d time.Duration) { advance(p.Service, d) }

func advance(s *maintain.Service, d time.Duration) {
	clock := s.Clock
	s.Clock = func() lease.Instant {
		now := clock()
		now.Wall, now.Boot = now.Wall.Add(d), now.Boot+d
		return now
	}
}

// watch delivers the object, as the watch does.
func (p *poolFixture) watch() {
	p.t.Helper()
	var objects []any
	o := &ipamv1.NodeAddressPool{}
	if p.server.Get(poolPath, o) {
		objects = append(objects, o)
	}
	if err := p.Pool.Replace(objects, ""); err != nil {
		p.t.Fatal(err)
	}
}

// writes advances the clock to the next pass, runs it, and returns its writes, each as the last
// element of its path. The watch has delivered the object before, unless isBehind is true.
func (p *poolFixture) writes() string {
	p.t.Helper()
	p.after(nodePoolInterval)
	if !p.isBehind {
		p.watch()
	}
	p.server.Requests()
	if after := p.pass(p.t.Context()); after < nodePoolInterval {
		p.t.Errorf("the next pass is after %s, want at least %s", after, nodePoolInterval)
	}
	var writes []string
	for _, r := range p.server.Requests() {
		if path, isWrite := strings.CutPrefix(r, "PATCH "); isWrite {
			writes = append(writes, path[strings.LastIndex(path, "/")+1:])
		}
	}
	return strings.Join(writes, " ")
}

func (p *poolFixture) object() ipamv1.NodeAddressPool {
	p.t.Helper()
	var o ipamv1.NodeAddressPool
	if !p.server.Get(poolPath, &o) {
		p.t.Fatal("there is no NodeAddressPool")
	}
	return o
}

// expect runs a pass that has to make the given writes, and compares the object.
func (p *poolFixture) expect(name, writes, want string) {
	p.t.Helper()
	if got := p.writes(); got != writes {
		p.t.Errorf("%s: writes %q, want %q", name, got, writes)
	}
	s := p.object().Status
	if got := fmt.Sprint(text(s.AddressCounts), networksText(s)); got != want {
		p.t.Errorf("%s:\ngot  %s\nwant %s", name, got, want)
	}
}

func text(c ipamv1.AddressCounts) string {
	number := func(n *int64) string {
		if n == nil {
			return "?"
		}
		return fmt.Sprint(*n)
	}
	return fmt.Sprintf("%s=%d+%d+%s", number(c.Size), c.Bound, c.Held, number(c.Free))
}

func networksText(s ipamv1.NodeAddressPoolStatus) (out string) {
	for _, n := range s.Networks {
		out += fmt.Sprintf(" %s %s %s", n.Name, text(n.AddressCounts), n.Active)
	}
	for _, c := range s.Conditions {
		out += fmt.Sprintf(" %s=%s", c.Type, c.Status)
	}
	return out
}

const unknown = " RetentionActive=Unknown"

func TestLifeOfANodeAddressPool(t *testing.T) {
	p := newPoolFixture(t)
	p.expect("no lease", "node1 status", "10=0+0+10 net 10=0+0+10 Unknown"+unknown)
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "node1", UID: types.UID(node.UID)}
	if o := p.object(); len(o.OwnerReferences) != 1 || o.OwnerReferences[0] != owner {
		t.Errorf("owners %+v", o.OwnerReferences)
	}
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.expect("bound for less than 30 s", "", "10=0+0+10 net 10=0+0+10 Unknown"+unknown)
	p.expect("bound", "status", "10=1+0+9 net 10=1+0+9 Unknown"+unknown)
	p.node.Release(l)
	p.expect("held for less than 30 s", "", "10=1+0+9 net 10=1+0+9 Unknown"+unknown)
	p.node.Update(func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, l) })
	p.expect("bound again", "", "10=1+0+9 net 10=1+0+9 Unknown"+unknown)
	p.node.Release(l)
	p.expect("held again for less than 30 s", "", "10=1+0+9 net 10=1+0+9 Unknown"+unknown)
	p.expect("held", "status", "10=0+1+9 net 10=0+1+9 Unknown"+unknown)
	p.server.Requests()
	p.pass(t.Context())
	if r := p.server.Requests(); len(r) > 0 {
		t.Errorf("nothing has changed, and the requests are %q", r)
	}
	p.Active = func() []cniconf.Status {
		return []cniconf.Status{{Network: "net", State: cniconf.Active, Reason: "Named"}}
	}
	p.expect("active", "status", "10=0+1+9 net 10=0+1+9 True RetentionActive=True")
}

func TestNodeAddressPoolIsWrittenAtMostEvery30s(t *testing.T) {
	p := newPoolFixture(t)
	p.writes()
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.after(nodePoolInterval - 5*time.Second)
	p.server.Requests()
	if next := p.pass(t.Context()); next <= 0 || next > 5*time.Second {
		t.Errorf("the next pass is after %s, want at most 5 s", next)
	}
	if r := p.server.Requests(); len(r) > 0 {
		t.Errorf("25 s after a write the requests are %q", r)
	}
	p.writes()
	p.expect("30 s after a write, for 30 s", "status", "10=1+0+9 net 10=1+0+9 Unknown"+unknown)
}

// The task writes at once that the activity has changed, if nothing was written just before.
func TestNodeAddressPoolFollowsTheActivity(t *testing.T) {
	p := newPoolFixture(t)
	p.writes()
	p.after(nodePoolInterval)
	var inactive atomic.Bool
	began := make(chan struct{}, 10)
	p.Active = func() []cniconf.Status {
		began <- struct{}{}
		if inactive.Load() {
			return []cniconf.Status{{Network: "net", State: cniconf.Inactive, Reason: "BinaryReplaced"}}
		}
		return nil
	}
	changes := make(chan struct{}, 1)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx, changes) }()
	<-began
	inactive.Store(true)
	changes <- struct{}{}
	fakeapi.Until(t, "the network is published as inactive", func() bool {
		return p.object().Status.Networks[0].Active == metav1.ConditionFalse
	})
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// The object is repaired if somebody deletes or changes it, or the node has another UID.
func TestNodeAddressPoolIsRepaired(t *testing.T) {
	const want = "10=0+0+10 net 10=0+0+10 Unknown" + unknown
	p := newPoolFixture(t)
	p.expect("first", "node1 status", want)
	p.server.Remove(poolPath)
	p.after(nodePoolInterval)
	p.expect("deleted", "node1 status", want)
	if p.lost != 1 || p.rereads != 1 {
		t.Errorf("Lost was called %d times, Reread %d times; want once", p.lost, p.rereads)
	}
	p.server.Remove(poolPath)
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.isBehind = true
	p.writes()
	if w := p.writes(); w != "status" {
		t.Errorf("the watch has not shown its deletion: writes %q", w)
	}
	p.isBehind = false
	p.node.Update(func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, lease.Lease{}) })
	p.expect("the write has shown it", "node1 status", want)
	o := p.object()
	o.Status.Held, o.Status.Networks = 7, nil
	o.Status.Conditions = append(o.Status.Conditions, metav1.Condition{Type: "Audited", Status: metav1.ConditionTrue})
	p.server.Put(poolPath, o)
	p.after(nodePoolInterval)
	p.expect("changed", "status", want+" Audited=True")
	p.uid = "0a0a0a0a-1"
	p.after(nodePoolInterval)
	p.expect("another node of that name", "node1", want+" Audited=True")
	if o := p.object(); len(o.OwnerReferences) != 1 || o.OwnerReferences[0].UID != "0a0a0a0a-1" {
		t.Errorf("owners %+v", o.OwnerReferences)
	}
	p.after(nodePoolInterval)
	p.expect("no change", "", want+" Audited=True")
	if p.lost != 2 {
		t.Errorf("Lost was called %d times, want once for each deletion", p.lost)
	}
}

// After a restart, a condition keeps the time of its last transition, and nothing is written.
func TestNodeAddressPoolAfterARestart(t *testing.T) {
	p := newPoolFixture(t)
	p.writes()
	before := p.object().Status.Conditions[0].LastTransitionTime
	p.after(time.Hour)
	p.restart()
	if w := p.writes(); w != "" {
		t.Errorf("writes %q", w)
	}
	p.Active = func() []cniconf.Status {
		return []cniconf.Status{{Network: "net", State: cniconf.Inactive, Reason: "BinaryReplaced", Message: "because"}}
	}
	p.expect("inactive", "status", "10=0+0+10 net 10=0+0+10 False RetentionActive=False")
	c := p.object().Status.Conditions[0]
	if !c.LastTransitionTime.After(before.Add(59*time.Minute)) || c.Reason != "BinaryReplaced" ||
		c.Message != "because" {
		t.Errorf("condition %+v, the time before was %s", c, before)
	}
}

// Without the CRD, or the right to write, the task says so once and retries ever more slowly.
func TestNodeAddressPoolThatIsRejected(t *testing.T) {
	for name, code := range map[string]int{"does not serve NodeAddressPools": fakeapi.NotServed,
		"writing the NodeAddressPool": http.StatusForbidden} {
		p := newPoolFixture(t)
		p.server.Reject(func(r *http.Request) int {
			if strings.HasPrefix(r.URL.Path, poolPath) && (code == fakeapi.NotServed || r.Method == http.MethodPatch) {
				return code
			}
			return 0
		})
		var after time.Duration
		for range 10 {
			next := p.pass(t.Context())
			if next < nodePoolInterval || next > 12*time.Minute {
				t.Errorf("%s: retry after %s", name, next)
			}
			after = max(after, next)
		}
		if after < maxNodePoolRetry {
			t.Errorf("%s: the longest retry is after %s", name, after)
		}
		if n := strings.Count(p.log.String(), name); n != 1 {
			t.Errorf("%q is logged %d times:\n%s", name, n, &p.log)
		}
		p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
		p.server.Reject(nil)
		p.expect("accepted", "node1 status", "10=1+0+9 net 10=1+0+9 Unknown"+unknown)
		if !strings.Contains(p.log.String(), "works again") {
			t.Error(p.log.String())
		}
		if next := p.pass(t.Context()); next > 2*nodePoolInterval {
			t.Errorf("the next pass is after %s", next)
		}
	}
}

// A server that is away is asked again at the usual pace, and gets the current numbers.
func TestNodeAddressPoolOfAServerThatIsAway(t *testing.T) {
	p := newPoolFixture(t)
	p.writes()
	p.server.Reject(fakeapi.Always(http.StatusServiceUnavailable))
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	for range 8 {
		if next := p.pass(t.Context()); next > 2*nodePoolInterval {
			t.Errorf("retry after %s", next)
		}
	}
	p.node.Release(l)
	p.node.Bind("10.0.0.3", "db-1", "u2", time.Hour, "")
	p.server.Reject(nil)
	p.writes()
	p.expect("back", "status", "10=1+1+8 net 10=1+1+8 Unknown"+unknown)
}

// A CRD of another version drops a field. Writing it again would have no effect either.
func TestNodeAddressPoolWithoutAField(t *testing.T) {
	p := newPoolFixture(t)
	p.server.Drop("networks")
	p.expect("first", "node1 status", "10=0+0+10"+unknown)
	p.expect("not repeated", "", "10=0+0+10"+unknown)
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.expect("a change", "status", "10=1+0+9"+unknown)
	p.expect("not repeated", "", "10=1+0+9"+unknown)
	p.server.Drop("")
	p.restart()
	p.expect("another version", "status", "10=1+0+9 net 10=1+0+9 Unknown"+unknown)
}

// A store that cannot be read says nothing.
func TestNodeAddressPoolOfALostStore(t *testing.T) {
	p := newPoolFixture(t)
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.writes()
	if err := os.Truncate(p.node.Store.Dirs().State+"/leases.db", 100); err != nil {
		t.Fatal(err)
	}
	p.expect("lost", "", "10=1+0+9 net 10=1+0+9 Unknown"+unknown)
	if !strings.Contains(p.log.String(), "reading the store") {
		t.Error(p.log.String())
	}
}

func TestDesiredNodePool(t *testing.T) {
	usage := func(network string, size, bound, held uint64) store.Usage {
		return store.Usage{Pool: lease.Pool{Network: network}, Ranges: tenAddresses, Size: size, Bound: bound,
			Held: held, Free: size - bound - held}
	}
	active := func(network string) cniconf.Status { return cniconf.Status{Network: network, State: cniconf.Active} }
	sized := func(network string, size uint64) cniconf.Status {
		return cniconf.Status{Network: network, State: cniconf.Active, Size: size}
	}
	inactive := cniconf.Status{Network: "b", State: cniconf.Inactive, Reason: "Because"}
	notKnown := cniconf.Status{Network: "c", State: cniconf.Unknown, Reason: "Perhaps"}
	for name, tt := range map[string]struct {
		usage  []store.Usage
		active []cniconf.Status
		want   string
	}{
		"nothing": {nil, nil, "?=0+0+?" + unknown},
		"sums": {[]store.Usage{usage("a", 10, 1, 2), usage("b", 5, 5, 0)}, nil,
			"15=6+2+7 a 10=1+2+7 Unknown b 5=5+0+0 Unknown" + unknown},
		"size not known": {[]store.Usage{usage("a", 10, 1, 2), {Pool: lease.Pool{Network: "b"}, Bound: 3}}, nil,
			"10=4+2+7 a 10=1+2+7 Unknown b ?=3+0+? Unknown" + unknown},
		"huge": {[]store.Usage{usage("a", math.MaxUint64, 1, 2), usage("b", 10, 1, 1)}, nil,
			"9223372036854775807=2+3+9223372036854775807 a 9223372036854775807=1+2+9223372036854775807 Unknown " +
				"b 10=1+1+8 Unknown" + unknown},
		"loaded, not used yet": {nil, []cniconf.Status{active("a")}, "?=0+0+? a ?=0+0+? True RetentionActive=True"},
		"loaded with ranges, not used yet": {nil, []cniconf.Status{sized("a", 10)},
			"10=0+0+10 a 10=0+0+10 True RetentionActive=True"},
		"loaded with ranges, imported": {[]store.Usage{{Pool: lease.Pool{Network: "a"}, Bound: 3, Held: 1}},
			[]cniconf.Status{sized("a", 10)}, "10=3+1+6 a 10=3+1+6 True RetentionActive=True"},
		"loaded with other ranges than the last call's": {[]store.Usage{usage("a", 10, 1, 2)},
			[]cniconf.Status{sized("a", 20)}, "10=1+2+7 a 10=1+2+7 True RetentionActive=True"},
		"one inactive": {nil, []cniconf.Status{notKnown, active("a"), inactive},
			"?=0+0+? a ?=0+0+? True b ?=0+0+? False c ?=0+0+? Unknown RetentionActive=False"},
		"one unknown": {nil, []cniconf.Status{active("a"), notKnown},
			"?=0+0+? a ?=0+0+? True c ?=0+0+? Unknown" + unknown},
		"of a former configuration": {
			[]store.Usage{usage("a", 10, 1, 2), usage("old", 5, 0, 0), usage("older", 5, 0, 1)},
			[]cniconf.Status{active("a")},
			"15=1+3+11 a 10=1+2+7 True older 5=0+1+4 Unknown RetentionActive=True"},
		"perhaps of a former configuration": {[]store.Usage{usage("old", 5, 0, 0)}, []cniconf.Status{notKnown},
			"5=0+0+5 c ?=0+0+? Unknown old 5=0+0+5 Unknown" + unknown},
		"no configuration": {nil, []cniconf.Status{{State: cniconf.Inactive, Reason: "NoConfiguration"}},
			"?=0+0+? RetentionActive=False"},
	} {
		s := desiredNodePool(node, tt.usage, tt.active).Status
		if got := text(s.AddressCounts) + networksText(s); got != tt.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, tt.want)
		}
		for _, n := range s.Networks {
			if (n.Active == metav1.ConditionTrue) != (n.Reason == "") {
				t.Errorf("%s: reason %q of %s", name, n.Reason, n.Name)
			}
		}
	}
	var many []store.Usage
	for i := range maxNetworks + 5 {
		many = append(many, usage(fmt.Sprintf("net-%03d", i), 10, 1, 0))
	}
	if s := desiredNodePool(node, many, nil).Status; len(s.Networks) != maxNetworks || s.Bound != maxNetworks+5 {
		t.Errorf("%d networks, %d bound", len(s.Networks), s.Bound)
	}
}
