package publish

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
	"github.com/leasehold-cni/leasehold/test/must"
)

const requestPath = group + "namespaces/db/addressrequests/db"

// request creates or replaces the AddressRequest, and has the manager name it.
func (p *fixture) request(generation int64, change func(*ipamv1.AddressRequest)) {
	r := ipamv1.AddressRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db", UID: "r1",
		Generation: generation, CreationTimestamp: metav1.Time{Time: p.Service.Node.Clock().Wall}}}
	var before ipamv1.AddressRequest
	if p.server.Get(requestPath, &before) {
		r = before
		r.Generation = generation
	}
	change(&r)
	p.server.Put(requestPath, r)
	ref := ipamv1.RequestReference{ReservationReference: ipamv1.ReservationReference{Namespace: "db", Name: "db",
		UID: "r1", Generation: generation}}
	for _, e := range r.Spec.Entries {
		ref.Addresses = append(ref.Addresses, e.Addresses...)
	}
	p.nameRequests(ref)
}

// nameRequests has the manager name these requests.
func (p *fixture) nameRequests(refs ...ipamv1.RequestReference) {
	var o ipamv1.NodeAddressPool
	p.server.Get(poolPath, &o)
	o.Name, o.Spec.Requests = "node1", refs
	p.server.Put(poolPath, o)
}

// requested runs two passes and returns what the request shows.
func (p *fixture) requested() string {
	p.t.Helper()
	p.publish()
	p.publish()
	var r ipamv1.AddressRequest
	p.server.Get(requestPath, &r)
	var out []string
	for _, a := range r.Status.Addresses {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s@%s %s %s", a.Address, a.NodeName, a.State, a.Reason)))
	}
	return strings.Join(out, ", ")
}

// newRequests returns a fixture with a NodeAddressPool and limits of namespaces.
func newRequests(t *testing.T, limits policy.Limits) *fixture {
	p := newFixture(t)
	p.publish()
	p.limit(limits)
	return p
}

// asks gives the AddressRequest these entries.
func (p *fixture) asks(generation int64, entries ...ipamv1.AddressRequestEntry) {
	p.request(generation, func(r *ipamv1.AddressRequest) { r.Spec.Entries = entries })
}

// answers runs two passes, and compares what the request shows.
func (p *fixture) answers(name, want string) {
	p.t.Helper()
	check.Equal(p.t, p.requested(), want, name)
}

// limit sets the limits in the cluster and in the store.
func (p *fixture) limit(limits policy.Limits) {
	p.t.Helper()
	p.node.Update(func(tx *store.Tx) error { return tx.SetLimits(limits) })
	object := &corev1.ConfigMap{Data: limits,
		ObjectMeta: metav1.ObjectMeta{Namespace: kube.Namespace, Name: "leasehold-limits"}}
	must.Succeed(p.t, p.Limits.Replace([]any{object}, ""))
}

func entryOf(pod string, addresses ...string) ipamv1.AddressRequestEntry {
	return ipamv1.AddressRequestEntry{PodName: pod, Addresses: addresses}
}

func TestARequestedAddressIsHeld(t *testing.T) {
	p := newRequests(t, nil)
	p.asks(1, entryOf("db-0", "10.0.0.5"), entryOf("db-1", "10.0.0.6"))
	p.answers("without the limit", "10.0.0.5@node1 Rejected NotAllowed, 10.0.0.6@node1 Rejected NotAllowed")
	p.limit(policy.Limits{"choose": "true", "web.choose": "false"})
	p.answers("allowed", "10.0.0.5@node1 Held, 10.0.0.6@node1 Held")
	check.Equal(t, p.state(mine), "Held 10.0.0.5", "the reservation")

	// The address of another pod is held when it is free, if that is asked for.
	other := p.node.Release(p.node.Bind("10.0.0.7", "web-0", "u7", time.Hour, ""))
	p.asks(2, entryOf("db-0", "10.0.0.5"), entryOf("db-2", "10.0.0.7"), entryOf("db-3", "10.0.0.99"))
	p.answers("in use, and no address", "10.0.0.5@node1 Held, 10.0.0.7@node1 Rejected AddressInUse, "+
		"10.0.0.99@node1 Rejected InvalidAddress")
	check.Equal(t, p.state("db-1-5f1c9a02"), "none", "the hold of the removed entry")
	var r ipamv1.AddressRequest
	p.server.Get(requestPath, &r)
	if got := r.Status.Addresses[1].Message; !strings.HasPrefix(got, "10.0.0.7 is held for pod db/web-0 until 20") {
		t.Errorf("the message is %q", got)
	}
	p.node.Update(func(tx *store.Tx) error { return tx.Put(other.Pool, other.Address, lease.Lease{}) })
	p.answers("free, and waiting is not asked for", "10.0.0.5@node1 Held, 10.0.0.7@node1 Rejected AddressInUse, "+
		"10.0.0.99@node1 Rejected InvalidAddress")
	other = p.node.Release(p.node.Bind("10.0.0.8", "web-1", "u8", time.Hour, ""))
	p.request(3, func(r *ipamv1.AddressRequest) {
		r.Spec.Entries, r.Spec.Wait = []ipamv1.AddressRequestEntry{entryOf("db-0", "10.0.0.5"),
			entryOf("db-2", "10.0.0.8")}, true
	})
	p.answers("waiting", "10.0.0.5@node1 Held, 10.0.0.8@node1 Waiting AddressInUse")
	p.node.Update(func(tx *store.Tx) error { return tx.Put(other.Pool, other.Address, lease.Lease{}) })
	p.answers("free", "10.0.0.5@node1 Held, 10.0.0.8@node1 Held")

	// db-0 comes: the end of the request changes nothing for it, and ends the hold of db-2.
	p.node.Update(func(tx *store.Tx) error {
		l, err := tx.Get(p.node.Pool, other.Address.Prev().Prev().Prev())
		l.State, l.IsHold, l.Hold, l.ReleasedAt = lease.Bound, false, 0, lease.Instant{}
		l.UID, l.Holder.ContainerID, l.Window = "u1", "c1", lease.Window(time.Hour)
		if err != nil {
			return err
		}
		return tx.Put(l.Pool, l.Address, l)
	})
	p.answers("db-0 has it", "10.0.0.5@node1 Bound, 10.0.0.8@node1 Held")
	p.nameRequests()
	p.answers("the manager names nothing", "10.0.0.5@node1 Bound, 10.0.0.8@node1 Held")
	check.Equal(t, p.state("db-2-5f1c9a02"), "Held 10.0.0.8", "the hold of a request that exists and is not named")
	p.server.Remove(requestPath)
	p.after(2 * requestInterval)
	p.requested()
	check.Equal(t, p.state(mine)+", "+p.state("db-2-5f1c9a02"), "Bound 10.0.0.5, none", "after the deletion")
}

// A request that was created again under its name is another one than the manager names.
func TestARequestThatWasCreatedAgain(t *testing.T) {
	p := newRequests(t, policy.Limits{"choose": "true"})
	p.request(1, func(r *ipamv1.AddressRequest) {
		r.UID, r.Spec.Entries = "r2", []ipamv1.AddressRequestEntry{entryOf("db-0", "10.0.0.5")}
	})
	p.requested()
	check.Equal(t, p.state(mine), "none", "the manager names the former one")
	p.nameRequests(ipamv1.RequestReference{ReservationReference: ipamv1.ReservationReference{Namespace: "db",
		Name: "db", UID: "r2", Generation: 1}, Addresses: []string{"10.0.0.5"}})
	p.answers("the manager names it", "10.0.0.5@node1 Held")
}

func TestARequestExpires(t *testing.T) {
	p := newRequests(t, policy.Limits{"db.choose": "true"})
	p.request(1, func(r *ipamv1.AddressRequest) {
		r.Spec.For, r.Spec.Entries = "1h", []ipamv1.AddressRequestEntry{entryOf("db-0", "10.0.0.5")}
	})
	p.answers("in time", "10.0.0.5@node1 Held")
	p.after(2 * time.Hour)
	p.answers("late", "10.0.0.5@node1 Expired Expired")
	check.Equal(t, p.state(mine), "none", "the reservation")
}

// A request is read once for each of its states. The changes of leases, and of its status by the
// agent itself, cost no reads.
func TestReadsOfRequests(t *testing.T) {
	p := newRequests(t, policy.Limits{"choose": "true"})
	reads := func() (n int) {
		p.publish()
		for _, r := range p.reads() {
			if strings.Contains(r, requestResource) {
				n++
			}
		}
		return n
	}
	p.asks(1, entryOf("db-0", "10.0.0.5"))
	check.Equal(t, reads()+reads(), 1, "reads of a new request")
	p.node.Bind("10.0.0.7", "web-0", "u7", time.Hour, "")
	p.after(time.Hour)
	check.Equal(t, reads()+reads(), 0, "reads after another lease has changed")
	p.asks(2, entryOf("db-0", "10.0.0.5"))
	check.Equal(t, reads(), 1, "reads of another generation")
	p.nameRequests()
	check.Equal(t, reads()+reads(), 1, "reads of a request that is not named and has a hold")
	p.after(requestInterval)
	check.Equal(t, reads(), 1, "reads a minute later")
}

// Without the CRD of AddressRequests everything else is published.
func TestRequestsThatAreNotServed(t *testing.T) {
	p := newRequests(t, policy.Limits{"choose": "true"})
	p.asks(1, entryOf("db-0", "10.0.0.5"))
	p.answers("served", "10.0.0.5@node1 Held")
	p.reject(fakeapi.NotServed, func(r *http.Request) bool { return strings.Contains(r.URL.Path, requestResource) })
	p.asks(2, entryOf("db-0", "10.0.0.5"))
	p.node.Bind("10.0.0.7", "web-0", "u7", time.Hour, "")
	p.after(time.Minute)
	p.expect("not served", p.publish(), "PATCH web-0-5f1c9a02", "PATCH status")
	if pools := p.writes(poolPath); len(pools) == 0 || p.next < time.Second || p.next > 2*nodePoolInterval {
		t.Errorf("the NodeAddressPool is written: %q; the next pass is after %s", pools, p.next)
	}
	count := 0
	for range 120 {
		p.after(5 * time.Second) // a lease changes
		p.publish()
		for _, r := range p.all {
			if strings.Contains(r, requestResource) {
				count++
			}
		}
	}
	check.Between(t, count, 0, 20, "requests, not served for ten minutes")
	p.server.Reject(nil)
	p.after(2 * time.Minute)
	p.answers("served again", "10.0.0.5@node1 Held")
}

// Limits that are not those of the cluster as it is now end nothing, and begin what they allow.
func TestRequestsAndUnknownLimits(t *testing.T) {
	for name, tt := range map[string]struct {
		stored, current policy.Limits
		hold            time.Duration
	}{
		"the ConfigMap is invalid":      {policy.Limits{"choose": "true"}, policy.Limits{"choose": "yes"}, 0},
		"those in the store are unread": {nil, policy.Limits{"choose": "true"}, 0},
		"the ConfigMap is gone":         {nil, nil, requestRest},
	} {
		p := newRequests(t, policy.Limits{"choose": "true"})
		p.asks(1, entryOf("db-0", "10.0.0.5"))
		p.answers(name, "10.0.0.5@node1 Held")
		p.limit(tt.current)
		p.node.Update(func(tx *store.Tx) error { return tx.SetLimits(tt.stored) })
		p.requested()
		hold := time.Duration(0)
		if l := p.leasesOf()["db"]; len(l) == 1 && l[0].Hold != lease.Forever {
			hold = time.Duration(l[0].Hold)
		}
		check.Equal(t, hold, tt.hold, name+": the hold (0: without end)")
	}
}

// What an edit no longer asks for ends before the address is reserved again, also if two pods
// exchange theirs, and an edit of the request that has the address lets another one have it.
func TestEndsComeFirst(t *testing.T) {
	p := newRequests(t, policy.Limits{"choose": "true"})
	p.asks(1, entryOf("db-0", "10.0.0.5"), entryOf("db-1", "10.0.0.6"))
	p.requested()
	p.asks(2, entryOf("db-1", "10.0.0.5"), entryOf("db-0", "10.0.0.6"))
	p.publish()
	p.answers("after the exchange", "10.0.0.5@node1 Held, 10.0.0.6@node1 Held")
	check.Equal(t, p.state("db-1-5f1c9a02")+", "+p.state(mine), "Held 10.0.0.5, Held 10.0.0.6", "the reservations")
	p.asks(3, ipamv1.AddressRequestEntry{Reservation: "web", Addresses: []string{"10.0.0.5"}})
	p.publish()
	if got := p.requested(); got != "10.0.0.5@node1 Held" || len(p.leasesOf()["db"]) != 1 {
		t.Errorf("for a reservation name: %s, %v", got, p.leasesOf()["db"])
	}
}

// A pod is not refused another address because of its former one, whose hold could not be ended.
func TestEndThatFails(t *testing.T) {
	p := newRequests(t, policy.Limits{"choose": "true"})
	for i, address := range []string{"10.0.0.5", "10.0.0.6"} {
		p.asks(int64(i+1), entryOf("db-0", address))
		if i == 1 {
			p.pauses["ending holds of AddressRequests"] = pause{until: time.Now().Add(time.Hour), err: errors.New("no")}
		}
		p.requested()
	}
	delete(p.pauses, "ending holds of AddressRequests")
	p.publish()
	p.answers("without the pause", "10.0.0.6@node1 Held")
}

// An address passes from the hold that ends to the one that begins in one transaction, so that no
// pod gets it in between.
func TestAnAddressPassesToAnotherHold(t *testing.T) {
	addresses := func(r *requester) []string { return r.request.Spec.Entries[0].Addresses }
	asks := func(r *requester, addresses []string) {
		r.edit(func(s *ipamv1.AddressRequestSpec) { s.Entries[0].Addresses = addresses })
	}
	for name, tt := range map[string]struct {
		change func(a, b *requester)
		passed int
	}{
		"to another pod": {func(a, _ *requester) {
			a.edit(func(s *ipamv1.AddressRequestSpec) { s.Entries[0].PodName = "db-7" })
		}, 1},
		"to the request that is created again": {func(a, _ *requester) { a.create() }, 1},
		"to another namespace": {func(a, b *requester) {
			asks(b, addresses(a))
			a.request = nil
		}, 1},
		"in both directions": {func(a, b *requester) {
			of := addresses(a)
			asks(a, addresses(b))
			asks(b, of)
		}, 2},
	} {
		p := newFixture(t)
		p.publish() // creates the NodeAddressPool
		all := p.requesters(2)
		clock, readings := p.Service.Node.Clock, time.Duration(0)
		p.Service.Node.Clock = func() lease.Instant { // each transaction has a time of its own
			readings += time.Millisecond
			now := clock()
			now.Wall, now.Boot = now.Wall.Add(readings), now.Boot+readings
			return now
		}
		p.settle(all)
		_, before, err := p.Service.Journal(t.Context(), 0)
		must.Succeed(t, err)
		tt.change(all[0], all[1])
		p.settle(all)
		entries, _, err := p.Service.Journal(t.Context(), before)
		must.Succeed(t, err)
		passed := 0
		for i, e := range entries {
			if i > 0 && e.Event == store.EventReserved && entries[i-1].Event == store.EventRevoked &&
				e.Address == entries[i-1].Address && e.Time.Equal(entries[i-1].Time) {
				passed++
			}
		}
		check.Equal(t, passed, tt.passed, name, "addresses passed at once", entries)
	}
}

// Addresses that cannot be held are tried again now and then, however many there are, and those
// that were not tried before come first.
func TestManyRefusedAddresses(t *testing.T) {
	p := newRequests(t, policy.Limits{"choose": "true"})
	p.request(1, func(r *ipamv1.AddressRequest) {
		for i := range 3 * maxReserved {
			r.Spec.Entries = append(r.Spec.Entries, entryOf(fmt.Sprint("web-", i), fmt.Sprint("10.0.1.", i)))
		}
	})
	for range 3 {
		p.publish()
	}
	var shown ipamv1.AddressRequest
	if p.server.Get(requestPath, &shown); len(shown.Status.Addresses) == 0 {
		t.Error("no address is shown as rejected")
	}
	if p.publish(); p.next < retry {
		t.Errorf("the next pass is in %s, after one that has held nothing; want at least %s", p.next, retry)
	}
	const good = group + "namespaces/db/addressrequests/good"
	p.server.Put(good, ipamv1.AddressRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "good", UID: "r2",
		Generation: 1}, Spec: ipamv1.AddressRequestSpec{Entries: []ipamv1.AddressRequestEntry{
		entryOf("db-0", "10.0.0.5")}}})
	refs := append([]ipamv1.RequestReference{{ReservationReference: ipamv1.ReservationReference{Namespace: "db",
		Name: "good", UID: "r2", Generation: 1}, Addresses: []string{"10.0.0.5"}}}, p.Pool.Named().Requests...)
	p.nameRequests(refs...)
	p.publish()
	check.Equal(t, fmt.Sprint(p.node.Leases()), "[10.0.0.5=db-0/Held]", "a new request beside them")
}

// The work of a pass grows with the entries of the requests, not with the square of those of one.
func TestWorkOfAPass(t *testing.T) {
	const requests, entries = 32, 64 // as many as the manager names
	read, view := map[kube.Name]namedRequest{}, maintain.NodeView{Limits: policy.Limits{"choose": "true"}}
	for i := range requests {
		r := &ipamv1.AddressRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: fmt.Sprint("r", i), UID: "u"}}
		ref := ipamv1.RequestReference{ReservationReference: ipamv1.ReservationReference{UID: "u"}}
		for j := range entries {
			e := entryOf(fmt.Sprint("db-", j))
			for k := range 4 {
				e.Addresses = append(e.Addresses, fmt.Sprintf("10.%d.%d.%d", i, j, k))
				view.Leases = append(view.Leases, lease.Lease{State: lease.Held, IsHold: true, Hold: lease.Forever,
					Namespace: "db", Name: e.PodName, Holder: lease.Holder{IfName: "eth0"},
					Address: netip.MustParseAddr(e.Addresses[k]), Owner: requestOwner + r.Name + "/u"})
			}
			r.Spec.Entries, ref.Addresses = append(r.Spec.Entries, e), append(ref.Addresses, e.Addresses[0])
		}
		read[kube.Name{Namespace: "db", Name: r.Name}] = namedRequest{ref, r}
	}
	var plan requestPlan
	made := testing.AllocsPerRun(1, func() { plan = planRequests("node1", read, view, true, nil) })
	if most := 100.0 * requests * entries; made > most || len(plan.Wishes) != requests*entries || len(plan.End) > 0 {
		t.Errorf("%.0f allocations for %d entries, %d kinds of ends; want at most %.0f", made, len(plan.Wishes),
			len(plan.End), most)
	}
}
