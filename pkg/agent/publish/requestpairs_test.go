package publish

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/must"
)

// requester is a namespace with an AddressRequest, and a range set of two addresses.
type requester struct {
	namespace                              string
	set                                    pool.Set
	request                                *ipamv1.AddressRequest // nil if it does not exist
	uids                                   int
	isForbidden, isElsewhere, isUnreadable bool
}

// requesters creates namespaces with AddressRequests.
func (p *fixture) requesters(count int) (all []*requester) {
	for i := range count {
		first := netip.AddrFrom4([4]byte{10, 0, byte(i / 64), byte(i % 64 * 4)})
		r := &requester{namespace: fmt.Sprint("n", i), set: pool.Set{{Start: first, End: first.Next()}}}
		r.create()
		p.server.PutCore("Namespace", r.namespace, "ns")
		all = append(all, r)
	}
	return all
}

func (r *requester) create() {
	r.uids++
	spec := ipamv1.AddressRequestSpec{Entries: []ipamv1.AddressRequestEntry{entryOf("db-0", r.set[0].Start.String())}}
	if r.request != nil {
		spec = r.request.Spec
	}
	r.request = &ipamv1.AddressRequest{Spec: spec, ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: "db",
		UID: types.UID(fmt.Sprint("uid-", r.uids)), Generation: 1, CreationTimestamp: metav1.Time{Time: time.Now()}}}
}

// requestChanges are what may happen to a request, its node or its pod.
var requestChanges = []struct {
	name   string
	change func(p *fixture, r *requester)
}{
	{"pod", func(_ *fixture, r *requester) {
		r.edit(func(s *ipamv1.AddressRequestSpec) { s.Entries[0].PodName = "db-1" })
	}},
	{"address", func(_ *fixture, r *requester) {
		r.edit(func(s *ipamv1.AddressRequestSpec) { s.Entries[0].Addresses = []string{r.set[0].End.String()} })
	}},
	{"choose", func(_ *fixture, r *requester) { r.isForbidden = true }},
	{"window", func(_ *fixture, r *requester) { r.edit(func(s *ipamv1.AddressRequestSpec) { s.For = "1h" }) }},
	{"free", func(_ *fixture, r *requester) { r.edit(func(s *ipamv1.AddressRequestSpec) { s.Wait = true }) }},
	{"deleted", func(_ *fixture, r *requester) { r.request = nil }},
	{"range", func(_ *fixture, r *requester) { r.isElsewhere = true }},
	{"unread", func(_ *fixture, r *requester) { r.isUnreadable = true }},
	{"back", func(_ *fixture, r *requester) { r.create() }},
	{"used", func(p *fixture, r *requester) { p.use(r) }},
}

func (r *requester) edit(change func(*ipamv1.AddressRequestSpec)) {
	if r.request != nil {
		next := r.request.DeepCopy()
		change(&next.Spec)
		next.Generation++
		r.request = next
	}
}

func (p *fixture) leasesOf() map[string][]lease.Lease {
	view, err := p.node.List(p.t.Context(), func(lease.Lease) bool { return true })
	must.Succeed(p.t, err)
	of := map[string][]lease.Lease{}
	for _, l := range view.Leases {
		of[l.Namespace] = append(of[l.Namespace], l)
	}
	return of
}

// use has a pod take the held address, if there is one.
func (p *fixture) use(r *requester) {
	for _, l := range p.leasesOf()[r.namespace] {
		if l.State == lease.Held {
			bound, err := lease.Apply(l, lease.Bind{Lease: lease.Lease{Pool: l.Pool, Address: l.Address, Set: l.Set,
				Namespace: l.Namespace, Name: l.Name, UID: "u1", Window: lease.Window(time.Hour), CoolDown: time.Minute,
				Holder: lease.Holder{ContainerID: "c1", IfName: "eth0",
					BootID: p.Service.Node.Clock().BootID}}, LastHolder: lease.Dead}, p.Service.Node.Clock())
			must.Succeed(p.t, err)
			p.node.Update(func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, bound) })
		}
	}
}

// settle tells the API server and the store how all are, as users and the manager do, and runs
// passes until nothing changes any more.
func (p *fixture) settle(all []*requester) {
	limits, refs, sets := policy.Limits{"choose": "false"}, []ipamv1.RequestReference{}, []pool.Set{}
	unreadable := map[string]bool{}
	for _, r := range all {
		path := group + "namespaces/" + r.namespace + "/addressrequests/db"
		unreadable[path] = r.isUnreadable
		if !r.isForbidden {
			limits[r.namespace+".choose"] = "true"
		}
		if !r.isElsewhere {
			sets = append(sets, r.set)
		}
		if r.request == nil {
			p.server.Remove(path)
			continue
		}
		var before ipamv1.AddressRequest
		next := *r.request
		if p.server.Get(path, &before); before.UID == next.UID {
			next.Status, next.ResourceVersion = before.Status, before.ResourceVersion
		}
		p.server.Put(path, next)
		if !r.isForbidden && !r.isElsewhere {
			refs = append(refs, ipamv1.RequestReference{Addresses: next.Spec.Entries[0].Addresses,
				ReservationReference: ipamv1.ReservationReference{Namespace: r.namespace, Name: "db",
					UID: string(next.UID), Generation: next.Generation}})
		}
	}
	p.limit(limits)
	p.nameRequests(refs...)
	p.node.Update(func(tx *store.Tx) error { return tx.SetRanges(p.node.Pool, sets) })
	p.reject(http.StatusInternalServerError, func(r *http.Request) bool {
		return r.Method == http.MethodGet && unreadable[r.URL.Path]
	})
	p.after(requestInterval)
	for n, before := 0, []string(nil); ; n++ {
		p.publish()
		now := p.outcomes(all)
		if n == 60 {
			p.t.Fatalf("after %d passes: %q, next %s, %v", n, now, p.next, p.failures(nil))
		}
		if slices.Equal(now, before) && p.next > time.Second {
			return
		}
		before = now
	}
}

// outcomes returns the leases of each namespace and what its request shows.
func (p *fixture) outcomes(all []*requester) (out []string) {
	of := p.leasesOf()
	for _, r := range all {
		out = append(out, p.outcome(r, of[r.namespace]))
	}
	return out
}

// outcome returns the leases of a namespace and what its request shows, such as "0a,a=Held":
// address a, the first one, is held for db-0 without end. 1h and 10m are shorter holds, and ! is a
// bound lease.
func (p *fixture) outcome(r *requester, leases []lease.Lease) string {
	var out []string
	now := p.Service.Node.Clock()
	for _, l := range leases {
		text := strings.TrimPrefix(l.Name, "db-") + map[bool]string{true: "a", false: "b"}[l.Address == r.set[0].Start]
		switch rest := time.Duration(l.Remaining(now)); {
		case l.State == lease.Bound:
			text += "!"
		case l.Hold != lease.Forever && rest <= requestRest:
			text += "10m"
		case l.Hold != lease.Forever && rest <= time.Hour:
			text += "1h"
		}
		out = append(out, text)
	}
	slices.Sort(out)
	var shown ipamv1.AddressRequest
	if p.server.Get(group+"namespaces/"+r.namespace+"/addressrequests/db", &shown) {
		for _, a := range shown.Status.Addresses {
			letter := map[bool]string{true: "a", false: "b"}[a.Address == r.set[0].Start.String()]
			out = append(out, letter+"="+string(a.State)+strings.TrimPrefix(a.Reason, "Address"))
		}
	}
	return strings.Join(out, ",")
}

// TestPairsOfRequestChanges wants the outcomes of testdata/requestpairs.txt, after the change of
// the row, passes, and the change of the column. A state that is shown although the namespace may
// not choose, or the range is another node's, is the last one that the agent knew: the manager
// replaces it.
func TestPairsOfRequestChanges(t *testing.T) {
	p := newFixture(t)
	p.publish() // creates the NodeAddressPool
	all := p.requesters(len(requestChanges) * len(requestChanges))
	p.settle(all)
	for i, r := range all {
		requestChanges[i/len(requestChanges)].change(p, r)
	}
	p.settle(all)
	for i, r := range all {
		requestChanges[i%len(requestChanges)].change(p, r)
	}
	p.settle(all)
	outcomes, got := p.outcomes(all), fmt.Sprintf("%-8s", "")
	for _, c := range requestChanges {
		got += fmt.Sprintf(" %-22s", c.name)
	}
	for i, c := range requestChanges {
		got += fmt.Sprintf("\n%-8s", c.name)
		for j := range requestChanges {
			got += fmt.Sprintf(" %-22s", cmp.Or(outcomes[i*len(requestChanges)+j], "-"))
		}
	}
	clean := regexp.MustCompile(` +\n`)
	want, err := os.ReadFile("testdata/requestpairs.txt")
	if got = clean.ReplaceAllString(got+"\n", "\n"); err != nil || got != string(want) {
		t.Errorf("%v; the outcomes are\n%s", err, got)
	}
}
