package publish

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
	"github.com/leasehold-cni/leasehold/test/must"
)

// updates advances the clock to the next check of the NodeAddressPool, runs a pass, and returns its
// writes of it, each as the last element of its path.
func (p *fixture) updates() string {
	p.t.Helper()
	p.after(max(p.nodePool.checkAt.Sub(p.now), nodePoolInterval))
	p.publish()
	var writes []string
	for _, w := range p.writes(poolPath) {
		writes = append(writes, strings.TrimPrefix(w, "PATCH "))
	}
	return strings.Join(writes, " ")
}

func (p *fixture) object() ipamv1.NodeAddressPool {
	p.t.Helper()
	var o ipamv1.NodeAddressPool
	if !p.server.Get(poolPath, &o) {
		p.t.Fatal("there is no NodeAddressPool")
	}
	return o
}

// expect runs a pass that has to make the given writes, and compares the object.
func (p *fixture) shows(name, writes, want string) {
	p.t.Helper()
	check.Equal(p.t, p.updates(), writes, name, "writes")
	s := p.object().Status
	check.Equal(p.t, fmt.Sprint(text(s.AddressCounts), networksText(s)), want, name)
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
	p := newFixture(t)
	p.shows("no lease", "node1 status", "10=0+0+10 net 10=0+0+10 Unknown"+unknown)
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: "node1", UID: types.UID(node.UID)}
	if o := p.object(); len(o.OwnerReferences) != 1 || o.OwnerReferences[0] != owner {
		t.Errorf("owners %+v", o.OwnerReferences)
	}
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.shows("bound", "status", "10=1+0+9 net 10=1+0+9 Unknown"+unknown)
	p.node.Release(l)
	p.shows("held", "status", "10=0+1+9 net 10=0+1+9 Unknown"+unknown)
	p.publish()
	check.Empty(t, p.all, "requests, although nothing has changed")
	p.Active = func() []cniconf.Status {
		return []cniconf.Status{{Network: "net", State: cniconf.Active, Reason: "Named"}}
	}
	const active = "10=0+1+9 net 10=0+1+9 True RetentionActive=True"
	p.shows("active", "status", active)

	o := p.object()
	o.Spec.Shared = []ipamv1.SharedRange{{NodeName: "node2", Start: "10.0.0.2", End: "10.0.0.9"}}
	p.server.Put(poolPath, o)
	p.updates()
	check.Equal(t, len(p.object().Status.Conditions), 1, "no link is known", p.object().Status.Conditions)
	p.node.Update(func(tx *store.Tx) error { return tx.SetLink(l.Pool, "macvlan eth1") })
	for _, s := range []ipamv1.SharedRange{{NodeName: "no node", Start: "10.0.0.2", End: "10.0.0.9"},
		{NodeName: "node2", Start: "10.0.0.2", End: "10.0.1.9"},
		{NodeName: "node2", Start: "nonsense", End: "10.0.0.9"},
		{NodeName: "node2", Start: "10.0.0.9", End: "10.0.0.2"}} {
		o = p.object()
		o.Spec.Shared = []ipamv1.SharedRange{s}
		p.server.Put(poolPath, o)
		p.updates()
		check.Equal(t, len(p.object().Status.Conditions), 1, s, p.object().Status.Conditions)
	}
	o = p.object()
	o.Spec.Shared = []ipamv1.SharedRange{{NodeName: "node2", Start: "10.0.0.2", End: "10.0.0.9"}}
	p.server.Put(poolPath, o)
	p.shows("the manager names a range that another node has", "status", active+" AddressesShared=True")
	o = p.object()
	check.Contains(t, o.Status.Conditions[1].Message, "10.0.0.2-10.0.0.9 of network net with node node2")
	o.Spec.Shared = nil
	p.server.Put(poolPath, o)
	p.shows("and does not any more", "status", active)
}

// Numbers are written at most every 30 s, and a change of the activity at once, unless something
// was written just before.
func TestNodeAddressPoolIsWrittenAtMostEvery30s(t *testing.T) {
	p := newFixture(t)
	p.updates()
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	state := cniconf.Inactive
	p.Active = func() []cniconf.Status {
		return []cniconf.Status{{Network: "net", State: state, Reason: "BinaryReplaced"}}
	}
	p.after(nodePoolInterval - 5*time.Second)
	if p.publish(); len(p.writes(poolPath)) > 0 || p.next <= 0 || p.next > 5*time.Second+10*time.Millisecond {
		t.Errorf("25 s after a write: %q, the next pass is after %s", p.all, p.next)
	}
	p.after(5 * time.Second)
	p.publish()
	p.checkWrites("30 s after a write", "PATCH status")
	p.updates()
	p.after(time.Second)
	state = cniconf.Active
	p.publish()
	p.checkWrites("1 s after a check that has found no change", "PATCH status")
	if n := p.object().Status.Networks[0]; n.Active != metav1.ConditionTrue || n.Bound != 1 {
		t.Errorf("%+v", n)
	}
}

func (p *fixture) checkWrites(name string, want ...string) {
	p.t.Helper()
	check.Slices(p.t, p.writes(poolPath), want, name, "writes")
}

// The object is repaired if somebody deletes or changes it, or the node has another UID.
func TestNodeAddressPoolIsRepaired(t *testing.T) {
	const want = "10=0+0+10 net 10=0+0+10 Unknown" + unknown
	p := newFixture(t)
	p.shows("first", "node1 status", want)
	p.server.Remove(poolPath)
	p.shows("deleted", "node1 status", want)
	p.after(2 * time.Second)
	if p.publish(); len(p.all) != 2 || len(p.reads()) != 1 {
		t.Errorf("after a deletion: %q, want a read of the node and a list", p.all)
	}
	p.server.Remove(poolPath)
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.isLate = true
	p.updates()
	check.Equal(t, p.updates(), "status", "writes before the watch has shown its deletion")
	p.isLate = false
	p.node.Update(func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, lease.Lease{}) })
	p.shows("the write has shown it", "node1 status", want)
	o := p.object()
	o.Status.Held, o.Status.Networks = 7, nil
	o.Status.Conditions = append(o.Status.Conditions, metav1.Condition{Type: "Audited", Status: metav1.ConditionTrue})
	p.server.Put(poolPath, o)
	p.shows("changed", "status", want+" Audited=True")
	p.setNode("0a0a0a0a-1")
	p.nodeAt = time.Time{}
	p.shows("another node of that name", "node1", want+" Audited=True")
	if o := p.object(); len(o.OwnerReferences) != 1 || o.OwnerReferences[0].UID != "0a0a0a0a-1" {
		t.Errorf("owners %+v", o.OwnerReferences)
	}
	p.shows("no change", "", want+" Audited=True")
}

// After a restart, a condition keeps the time of its last transition, and nothing is written.
func TestNodeAddressPoolAfterARestart(t *testing.T) {
	p := newFixture(t)
	p.updates()
	before := p.object().Status.Conditions[0].LastTransitionTime
	p.after(time.Hour)
	p.restart()
	check.Equal(t, p.updates(), "", "writes")
	p.Active = func() []cniconf.Status {
		return []cniconf.Status{{Network: "net", State: cniconf.Inactive, Reason: "BinaryReplaced", Message: "because"}}
	}
	p.shows("inactive", "status", "10=0+0+10 net 10=0+0+10 False RetentionActive=False")
	c := p.object().Status.Conditions[0]
	if !c.LastTransitionTime.After(before.Add(59*time.Minute)) || c.Reason != "BinaryReplaced" ||
		c.Message != "because" {
		t.Errorf("condition %+v, the time before was %s", c, before)
	}
}

// Without the CRD, or the right to write, the agent says so once and retries with the next check.
// It reads the node again, which may be another one of that name.
func TestNodeAddressPoolThatIsRejected(t *testing.T) {
	for want, tt := range map[string]struct {
		at   string
		code int
	}{"does not serve NodeAddressPools": {poolPath, fakeapi.NotServed},
		"writing the NodeAddressPool":               {poolPath, http.StatusForbidden},
		"writing the status of the NodeAddressPool": {poolPath + "/status", http.StatusForbidden}} {
		p := newFixture(t)
		p.reject(tt.code, func(r *http.Request) bool { return r.URL.Path == tt.at && r.Method == http.MethodPatch })
		p.publish()
		for range 3 {
			check.Between(t, p.nodePool.checkAt.Sub(p.now), nodePoolInterval, 2*nodePoolInterval, want)
			if p.publish(); len(p.all) != 1 || p.all[0] != "GET "+nodePath {
				t.Errorf("%s: %q, want a read of the node", want, p.all)
			}
			p.updates()
		}
		check.Equal(t, strings.Count(p.log.String(), want), 1, want, "in", &p.log)
		p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
		p.server.Reject(nil)
		if w := p.updates(); !strings.HasSuffix(w, "status") || p.object().Status.Bound != 1 {
			t.Errorf("%s: accepted: writes %q, %+v", want, w, p.object().Status)
		}
		check.Contains(t, p.log.String(), "works again")
	}
}

// An agent that cannot watch its NodeAddressPool does not take it for deleted, because lists of
// reservations are expensive.
func TestNodeAddressPoolThatIsNotWatched(t *testing.T) {
	p := newFixture(t)
	p.isLate = true
	p.publish()
	for range 3 {
		p.after(2 * nodePoolInterval)
		p.node.Release(p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, ""))
		p.publish()
		p.after(2 * time.Second)
		p.publish()
		p.expect("the pool is not known", p.reads())
	}
}

// A CRD of another version drops a field. Writing it again would have no effect either.
func TestNodeAddressPoolWithoutAField(t *testing.T) {
	p := newFixture(t)
	p.server.Drop("networks")
	p.shows("first", "node1 status", "10=0+0+10"+unknown)
	p.shows("not repeated", "", "10=0+0+10"+unknown)
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.shows("a change of the numbers", "status", "10=1+0+9"+unknown)
	p.shows("not repeated", "", "10=1+0+9"+unknown)
	p.server.Drop("")
	p.restart()
	p.shows("another version", "status", "10=1+0+9 net 10=1+0+9 Unknown"+unknown)
}

// A store that cannot be read says nothing.
func TestNodeAddressPoolOfALostStore(t *testing.T) {
	p := newFixture(t)
	p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.updates()
	must.Succeed(t, os.Truncate(p.node.Node.Store.Dirs().State+"/leases.db", 100))
	p.shows("lost", "", "10=1+0+9 net 10=1+0+9 Unknown"+unknown)
	check.Contains(t, p.log.String(), "reading the leases")
}

func TestDesiredNodePool(t *testing.T) {
	usage := func(network string, size, bound, held uint64) store.Usage {
		return store.Usage{Pool: lease.Pool{Network: network}, Ranges: tenAddresses, Size: size,
			Counts: store.Counts{Bound: bound, Held: held}, Free: size - bound - held}
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
		"size not known": {[]store.Usage{usage("a", 10, 1, 2),
			{Pool: lease.Pool{Network: "b"}, Counts: store.Counts{Bound: 3}}}, nil,
			"10=4+2+7 a 10=1+2+7 Unknown b ?=3+0+? Unknown" + unknown},
		"huge": {[]store.Usage{usage("a", math.MaxInt64, 1, 2), usage("b", 10, 1, 1)}, nil,
			"9223372036854775807=2+3+9223372036854775807 a 9223372036854775807=1+2+9223372036854775804 Unknown " +
				"b 10=1+1+8 Unknown" + unknown},
		"loaded, not used yet": {nil, []cniconf.Status{active("a")}, "?=0+0+? a ?=0+0+? True RetentionActive=True"},
		"loaded with ranges, not used yet": {nil, []cniconf.Status{sized("a", 10)},
			"10=0+0+10 a 10=0+0+10 True RetentionActive=True"},
		"loaded with ranges, imported": {
			[]store.Usage{{Pool: lease.Pool{Network: "a"}, Counts: store.Counts{Bound: 3, Held: 1}}},
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
		check.Equal(t, text(s.AddressCounts)+networksText(s), tt.want, name)
		for _, n := range s.Networks {
			check.Equal(t, n.Active == metav1.ConditionTrue, n.Reason == "", name, n.Name, "has no reason:", n.Reason)
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
