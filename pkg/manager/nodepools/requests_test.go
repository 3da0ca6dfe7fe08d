package nodepools

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// twoNodes are node1 with 10.0.1.1 to .254 and node2 with 10.0.2.1 to .254, each with fd00:<n>::1
// to ::ff as well, and both with 192.168.0.1 to .9.
func twoNodes() (pools []*ipam.NodeAddressPool) {
	for i := range 2 {
		four, six := fmt.Sprintf("10.0.%d.", i+1), fmt.Sprintf("fd00:%d::", i+1)
		pools = append(pools, &ipam.NodeAddressPool{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node", i+1)},
			Status: ipam.NodeAddressPoolStatus{Networks: []ipam.NetworkAddressPool{
				{Name: "net", Ranges: []ipam.AddressRange{{Start: four + "1", End: four + "254", Subnet: four + "0/24"},
					{Start: six + "1", End: six + "ff"}}},
				{Name: "shared", Ranges: []ipam.AddressRange{{Start: "192.168.0.1", End: "192.168.0.9"}}}}}})
	}
	return pools
}

func viewsOf(pools []*ipam.NodeAddressPool) (views []*nodePool) {
	for _, p := range pools {
		views = append(views, viewPool(p))
	}
	return views
}

func viewsOfRequests(requests ...*ipam.AddressRequest) (views []*addressRequest) {
	for _, r := range requests {
		views = append(views, viewRequest(r))
	}
	return views
}

func never(*addressRequest) bool { return false }

// shownIn returns the states that a plan shows in a request, "" if its status stays.
func shownIn(plan requestPlan, r *ipam.AddressRequest) string {
	for _, s := range plan.shown {
		if s.Name == r.Name && s.Namespace == r.Namespace {
			next := r.DeepCopy()
			s.apply(next)
			return statesText(next.Status.Addresses)
		}
	}
	return ""
}

func requestFor(namespace, name string, entries ...ipam.AddressRequestEntry) *ipam.AddressRequest {
	return &ipam.AddressRequest{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Generation: 3,
		ResourceVersion: "1", UID: types.UID("uid-" + name)}, Spec: ipam.AddressRequestSpec{Entries: entries}}
}

func entryOf(pod, nodeName string, addresses ...string) ipam.AddressRequestEntry {
	return ipam.AddressRequestEntry{PodName: pod, NodeName: nodeName, Addresses: addresses}
}

// shows adds states to a request, such as "10.0.1.5@node1 Held", which agents have written, or the
// manager if there is no node.
func shows(r *ipam.AddressRequest, states ...string) *ipam.AddressRequest {
	for _, text := range states {
		at, state, _ := strings.Cut(text, " ")
		address, node, _ := strings.Cut(at, "@")
		state, reason, _ := strings.Cut(state, " ")
		r.Status.Addresses = append(r.Status.Addresses, ipam.RequestedAddress{Address: address, NodeName: node,
			State: ipam.RequestState(state), Reason: reason, ObservedGeneration: r.Generation})
	}
	return r
}

func statesText(states []ipam.RequestedAddress) string {
	var out []string
	for _, a := range states {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s@%s %s %s", a.Address, a.NodeName, a.State, a.Reason)))
	}
	return strings.Join(out, ", ")
}

// Which agent is told of an entry, and what the request shows: of each way in which a request, the
// ranges, the limits or the pods may be, and may have changed since the states were written.
func TestPlanRequests(t *testing.T) {
	allowed, forbidden := policy.Limits{"db.choose": "true"}, policy.Limits{"db.choose": "false", "choose": "true"}
	held := func(r *reservation) { r.Addresses = "10.0.1.5" }
	named := func(r *reservation) { r.For, r.Addresses = "web", "10.0.1.5,fd00:1::5" }
	bound := func(r *reservation) { r.Addresses, r.Bound = "10.0.1.5", true }
	web := ipam.AddressRequestEntry{Reservation: "web", Addresses: []string{"10.0.1.5"}}
	one := entryOf("db-0", "", "10.0.1.5")
	const told = "10.0.1.5@ Waiting NodeNotReady"
	for _, tt := range []struct {
		name         string
		entry        ipam.AddressRequestEntry
		limits       policy.Limits
		before       string // states in the status, separated by commas
		reservations []*reservation
		named, shown string // shown is "" if the status stays
	}{
		{"a new request", one, allowed, "", nil, "node1", told},
		{"its agent has answered", one, allowed, "10.0.1.5@node1 Held", nil, "node1", ""},
		{"it has refused", one, allowed, "10.0.1.5@node1 Rejected AddressInUse", nil, "node1", ""},
		{"for a reservation name", web, allowed, "", nil, "node1", told},
		{"two families", entryOf("db-0", "", "10.0.1.5", "fd00:1::5"), allowed, "", nil, "node1",
			told + ", fd00:1::5@ Waiting NodeNotReady"},
		{"an address as nobody writes it", entryOf("db-0", "", "FD00:1:0::5"), allowed, "", nil, "node1",
			"FD00:1:0::5@ Waiting NodeNotReady"},
		{"of two nodes", entryOf("db-0", "", "10.0.1.5", "10.0.2.5"), allowed, "", nil, "",
			"10.0.1.5@ Rejected NoNode, 10.0.2.5@ Rejected NoNode"},
		{"a broadcast address, of which the agent says what it is", entryOf("db-0", "", "10.0.1.255"), allowed, "", nil,
			"node1", "10.0.1.255@ Waiting NodeNotReady"},
		{"of no node", entryOf("db-0", "", "10.9.0.1"), allowed, "", nil, "", "10.9.0.1@ Rejected NoNode"},
		{"no address", entryOf("db-0", "", "nonsense"), allowed, "", nil, "", "nonsense@ Rejected NoNode"},
		{"of several nodes", entryOf("db-0", "", "192.168.0.5"), allowed, "", nil, "",
			"192.168.0.5@ Rejected SeveralNodes"},
		{"of several nodes, one of which is named", entryOf("db-0", "node1", "192.168.0.5"), allowed, "", nil, "node1",
			"192.168.0.5@ Waiting NodeNotReady"},
		{"of several nodes, one of which has it", entryOf("db-0", "", "192.168.0.5"), allowed,
			"192.168.0.5@node2 Held", nil, "node2", ""},
		{"the named node does not have it", entryOf("db-0", "node2", "10.0.1.5"), allowed, "", nil, "",
			"10.0.1.5@ Rejected NoNode"},
		{"another node is named now", entryOf("db-0", "node2", "192.168.0.5"), allowed, "192.168.0.5@node1 Held", nil,
			"node2", "192.168.0.5@ Waiting NodeNotReady"},
		{"its range is another node's now", one, allowed, "10.0.1.5@node2 Held", nil, "node1", told},
		{"its range is gone", entryOf("db-0", "", "10.9.0.1"), allowed, "10.9.0.1@node1 Held", nil, "",
			"10.9.0.1@ Rejected NoNode"},
		{"another address before", one, allowed, "10.0.1.6@node1 Held", nil, "node1", told},
		{"it had no node before", one, allowed, "10.0.1.5@ Rejected NoNode", nil, "node1", told},
		{"the pod is on another node", one, allowed, "",
			[]*reservation{reservationOf("db-0", "node2", isConfirmed)}, "", "10.0.1.5@ Waiting PodOnOtherNode"},
		{"it is held there, and the pod on another node", one, allowed, "10.0.1.5@node1 Held",
			[]*reservation{reservationOf("db-0", "node1", held), reservationOf("db-0", "node2", isConfirmed)}, "", ""},
		{"the pod starts on another node", one, allowed, "", []*reservation{reservationOf("db-0", "node2", isBound)},
			"node1", told},

		{"the namespace may not choose", one, forbidden, "", nil, "", "10.0.1.5@ Rejected NotAllowed"},
		{"there are no limits", one, nil, "", nil, "", "10.0.1.5@ Rejected NotAllowed"},
		{"and it was shown", one, forbidden, "10.0.1.5@ Rejected NotAllowed", nil, "", ""},
		{"it may again", one, allowed, "10.0.1.5@ Rejected NotAllowed", nil, "node1", told},
		{"it may no longer, and the hold is there", one, forbidden, "10.0.1.5@node1 Held NotAllowed",
			[]*reservation{reservationOf("db-0", "node1", held)}, "", ""},
		{"it may no longer, and a pod's lease is there", one, forbidden, "10.0.1.5@node1 Bound",
			[]*reservation{reservationOf("db-0", "node1", bound)}, "", ""},
		{"it may no longer, and the hold of its name is there", web, forbidden, "10.0.1.5@node1 Held NotAllowed",
			[]*reservation{reservationOf("web-10-0-1-5", "node1", named)}, "", ""},
		{"it may no longer, and the hold has ended", one, forbidden, "10.0.1.5@node1 Held NotAllowed", nil, "",
			"10.0.1.5@ Rejected NotAllowed"},
		{"it may no longer, and a pod has it since", one, forbidden, "10.0.1.5@node1 Held NotAllowed",
			[]*reservation{reservationOf("db-0", "node1", bound)}, "", "10.0.1.5@ Rejected NotAllowed"},
		{"it may no longer, and another pod has it since", one, forbidden, "10.0.1.5@node1 Held NotAllowed",
			[]*reservation{reservationOf("db-1", "node1", held)}, "", "10.0.1.5@ Rejected NotAllowed"},
	} {
		r := requestFor("db", "db", tt.entry)
		if tt.before != "" {
			shows(r, strings.Split(tt.before, ", ")...)
		}
		requests, pools, set := viewsOfRequests(r), viewsOf(twoNodes()), setOf(t, tt.reservations...)
		plan := planRequests(requests, pools, tt.limits, true, set, never)
		want := map[string][]ipam.RequestReference{}
		if tt.named != "" {
			first := netip.MustParseAddr(tt.entry.Addresses[0]).String()
			want[tt.named] = []ipam.RequestReference{{ReservationReference: reference{Namespace: "db", Name: "db",
				UID: "uid-db", Generation: 3}, Addresses: []string{first}}}
		}
		if shown := shownIn(plan, r); fmt.Sprint(plan.named) != fmt.Sprint(want) || shown != tt.shown {
			t.Errorf("%s: names %v and shows %q, want %v and %q", tt.name, plan.named, shown, want, tt.shown)
		}

		unknown := planRequests(requests, pools, nil, false, set, never)
		isKept := r.Spec.Entries[0].NodeName == "" || strings.Contains(tt.before, "@"+r.Spec.Entries[0].NodeName)
		for _, a := range strings.Split(shownIn(unknown, r), ", ") {
			address, isOwn := strings.CutSuffix(a, "@ Waiting LimitsUnknown")
			if a != "" && (!isOwn || strings.Contains(tt.before, address+"@node") && isKept) {
				t.Errorf("%s, with unknown limits: %s", tt.name, shownIn(unknown, r))
			}
		}
		r.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		deleted := planRequests(viewsOfRequests(r), pools, tt.limits, true, set, never)
		check.Equal(t, len(unknown.named), 0, tt.name, "unknown limits name", unknown.named)
		check.Equal(t, len(deleted.named)+len(deleted.shown), 0, tt.name, deleted.named, deleted.shown)
	}
}

// A status is written once, also if two entries have an address and get different states. An
// address that the spec no longer has is removed from it.
func TestStatusIsWrittenOnce(t *testing.T) {
	r := shows(requestFor("db", "db", entryOf("db-0", "", "10.0.1.5"), entryOf("db-1", "", "10.0.1.5", "fd00:1::5"),
		entryOf("db-2", "", "10.9.0.1")), "10.0.1.99@node1 Held")
	set := setOf(t, reservationOf("db-1", "node2", isConfirmed))
	for i, want := range []string{"10.0.1.5@ Waiting NodeNotReady, 10.9.0.1@ Rejected NoNode, " +
		"fd00:1::5@ Waiting PodOnOtherNode", ""} {
		plan := planRequests(viewsOfRequests(r), viewsOf(twoNodes()), policy.Limits{"choose": "true"}, true, set, never)
		check.Equal(t, shownIn(plan, r), want, "pass", i+1, "shows")
		for _, s := range plan.shown {
			s.apply(r)
		}
	}
}

// However many requests a namespace has, those of another one are named and shown among the first.
// A namespace that may not choose is not named at all.
func TestRequestsAreFair(t *testing.T) {
	var all []*ipam.AddressRequest
	for i := range 3 * ipam.MaxReservations {
		for _, namespace := range []string{"a-forbidden", "b-allowed"} {
			all = append(all, requestFor(namespace, fmt.Sprintf("r%03d", i),
				entryOf(fmt.Sprint("db-", i), "", fmt.Sprintf("10.0.1.%d", 1+i%254))))
		}
	}
	all = append(all, requestFor("z-allowed", "late", entryOf("db-0", "", "10.0.1.100")))
	limits := policy.Limits{"b-allowed.choose": "true", "z-allowed.choose": "true"}
	plan := planRequests(viewsOfRequests(all...), viewsOf(twoNodes()), limits, true, setOf(t), never)
	count := map[string]int{}
	for _, ref := range plan.named["node1"] {
		count[ref.Namespace]++
	}
	if len(plan.named["node1"]) != ipam.MaxReservations || count["a-forbidden"] > 0 || count["z-allowed"] != 1 {
		t.Errorf("%v are named", count)
	}
	isLate := func(r requestStates) bool { return r.Namespace == "z-allowed" }
	if i := slices.IndexFunc(plan.shown, isLate); i < 0 || i > 2 || len(plan.shown) > maxShown+1 {
		t.Errorf("the status of the late one is number %d of %d", i, len(plan.shown))
	}
	many := requestFor("db", "many")
	for i := range 64 {
		many.Spec.Entries = append(many.Spec.Entries, entryOf(fmt.Sprint("db-", i), "", fmt.Sprint("fd00:1::", i+1)))
	}
	var big []*ipam.AddressRequest
	for i := range 40 {
		r := *many
		r.Name = fmt.Sprintf("r%02d", i)
		big = append(big, &r)
	}
	limits = policy.Limits{"choose": "true"}
	plan = planRequests(viewsOfRequests(big...), viewsOf(twoNodes()), limits, true, setOf(t), never)
	entries := 0
	for _, ref := range plan.named["node1"] {
		entries += len(ref.Addresses)
	}
	last := shownIn(plan, big[len(big)-1])
	check.Equal(t, entries, maxNamed, "named entries")
	check.Contains(t, last, "fd00:1::1@ Waiting TooManyRequests")
}

// The nodes of addresses are those that a search through all ranges finds, also with ranges that
// overlap.
func TestNodesOfAddresses(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	addr := func(n int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}) }
	for range 2000 {
		var pools []*nodePool
		for i := range 1 + random.IntN(5) {
			p := &nodePool{node: fmt.Sprint("node", i)}
			for range 1 + random.IntN(3) {
				start := random.IntN(30)
				p.ranges = append(p.ranges, nodeRange{node: p.node, start: addr(start),
					end: addr(start + random.IntN(12))})
			}
			pools = append(pools, p)
		}
		addresses := []netip.Addr{addr(random.IntN(40)), addr(random.IntN(40))}[:1+random.IntN(2)]
		var want []string
		for _, p := range pools {
			has := func(a netip.Addr) bool {
				return slices.ContainsFunc(p.ranges, func(n nodeRange) bool {
					return n.start.Compare(a) <= 0 && a.Compare(n.end) <= 0
				})
			}
			if has(addresses[0]) && has(addresses[len(addresses)-1]) {
				want = append(want, p.node)
			}
		}
		got := newRanges(pools).nodes(addresses)
		isWanted := !slices.ContainsFunc(got, func(node string) bool { return !slices.Contains(want, node) })
		if len(got) != min(len(want), 2) || !isWanted || len(got) == 2 && got[0] == got[1] {
			t.Fatalf("%v of %+v: %q, want %q", addresses, pools, got, want)
		}
	}
}

// The reconciler enqueues the nodes that are to be told something else, and writes statuses, a few
// in each pass. What agents have written meanwhile stays.
func TestNameRequests(t *testing.T) {
	now := time.Now()
	a := &api{requests: map[string]*ipam.AddressRequest{}}
	r := poolsOf(t, setOf(t), &now)
	r.client, r.reader = a, a
	for _, p := range twoNodes() {
		must.Succeed(t, r.pools.Update(p))
	}
	watch := func() {
		var all []any
		for _, r := range a.requests {
			all = append(all, r.DeepCopy())
		}
		must.Succeed(t, r.requests.Replace(all, ""))
	}
	pass := func(story, named string, queued, writes int, again time.Duration) {
		t.Helper()
		a.writes = 0
		result, err := r.Reconcile(t.Context(), allRequests)
		if got := fmt.Sprint(r.named); err != nil || got != named || r.queue.Len() != queued || a.writes != writes ||
			result.RequeueAfter != again {
			t.Errorf("%s: %s, %d nodes are enqueued, %d writes, again after %s, %v", story, got, r.queue.Len(),
				a.writes, result.RequeueAfter, err)
		}
	}
	must.Succeed(t, r.requests.Replace(nil, ""))
	pass("nothing", "map[]", 0, 0, 0)
	one := requestFor("db", "db", entryOf("db-0", "", "10.0.1.20"), entryOf("db-1", "", "10.9.0.1"))
	a.requests["db/db"] = one
	watch()
	pass("unknown limits", "map[]", 0, 1, checkInterval)
	limits := &corev1.ConfigMap{Data: policy.Limits{"choose": "true"},
		ObjectMeta: metav1.ObjectMeta{Namespace: kube.Namespace, Name: "leasehold-limits"}}
	must.Succeed(t, r.limits.Replace([]any{limits}, ""))
	watch()
	const named = "map[node1:[{{db db uid-db 3} [10.0.1.20]}]]"
	pass("known limits", named, 1, 1, checkInterval)
	check.Equal(t, statesText(a.requests["db/db"].Status.Addresses),
		"10.0.1.20@ Waiting NodeNotReady, 10.9.0.1@ Rejected NoNode")
	next := a.requests["db/db"].DeepCopy()
	next.ResourceVersion, next.Status.Addresses = "7", nil
	shows(next, "10.0.1.20@node1 Held")
	next.Status.Addresses[0].Message = "a message"
	a.requests["db/db"] = next
	pass("an agent has written meanwhile", named, 1, 0, checkInterval)
	watch()
	pass("and the watch shows it", named, 1, 1, checkInterval)
	got := a.requests["db/db"].Status.Addresses
	check.Equal(t, statesText(got), "10.0.1.20@node1 Held, 10.9.0.1@ Rejected NoNode")
	check.Equal(t, got[0].Message, "a message")
	watch()
	pass("nothing has changed", named, 1, 0, checkInterval)

	a.requests = map[string]*ipam.AddressRequest{}
	for i := range maxShown + 3 {
		a.requests[fmt.Sprint("db/r", i)] = requestFor("db", fmt.Sprint("r", i), entryOf("db-0", "", "10.9.0.1"))
	}
	watch()
	pass("many requests", "map[]", 1, maxShown, nameDelay)
	watch()
	pass("the rest of them", "map[]", 1, 3, checkInterval)
	a.requests = nil
	watch()
	pass("none is left", "map[]", 1, 0, 0)
}

// A status that cannot be written, for example because its object is as large as it may be, does
// not delay the next pass, and is tried less and less often.
func TestStatusThatCannotBeWritten(t *testing.T) {
	now := time.Now()
	a := &api{err: errors.New("etcdserver: request is too large"), requests: map[string]*ipam.AddressRequest{
		"db/db": requestFor("db", "db", entryOf("db-0", "", "10.9.0.1"))}}
	r := poolsOf(t, setOf(t), &now)
	r.client, r.reader = a, a
	must.Succeed(t, r.requests.Replace([]any{a.requests["db/db"].DeepCopy()}, ""))
	passes := 0
	for end := now.Add(5 * time.Minute); now.Before(end); passes++ {
		result, err := r.Reconcile(t.Context(), allRequests)
		if err != nil || a.writes == 0 || result.RequeueAfter != failedInterval {
			t.Fatalf("%d writes, again after %s, %v", a.writes, result.RequeueAfter, err)
		}
		now = now.Add(result.RequeueAfter)
	}
	check.Between(t, a.writes, 3, passes/3, "writes")
	var all []any
	for i := range 2 * maxShown {
		r := requestFor(fmt.Sprintf("a-%03d", i), fmt.Sprint("r", i), entryOf("db-0", "", "10.9.0.1"))
		a.requests[r.Namespace+"/"+r.Name], all = r, append(all, r)
	}
	a.requests["db/good"] = requestFor("db", "good", entryOf("db-0", "", "10.9.0.1"))
	must.Succeed(t, r.requests.Replace(append(all, a.requests["db/good"].DeepCopy()), ""))
	a.err, a.tooLarge = nil, func(o client.Object) bool { return strings.HasPrefix(o.GetNamespace(), "a-") }
	now = time.Now()
	for range 3 {
		_, err := r.Reconcile(t.Context(), allRequests)
		must.Succeed(t, err)
	}
	if got := statesText(a.requests["db/good"].Status.Addresses); got == "" {
		t.Error("objects of other namespaces that are too large keep the status of one from being written")
	}
}

// Limits that are listed after the first pass begin another one, also if there are none.
func TestRequestsAreNamedWhenTheLimitsAreKnown(t *testing.T) {
	now := time.Now()
	r := poolsOf(t, setOf(t), &now)
	must.Succeed(t, r.set.Replace(nil, ""))
	must.Succeed(t, r.pools.Replace(nil, ""))
	must.Succeed(t, r.requests.Replace(nil, ""))
	go r.start(t.Context(), r.queue)
	for range 2 { // allRequests and allRanges
		item, _ := r.queue.Get()
		r.queue.Done(item)
	}
	must.Succeed(t, r.limits.Replace(nil, ""))
	broken := time.AfterFunc(time.Minute, r.queue.ShutDown)
	defer broken.Stop()
	if item, isClosed := r.queue.Get(); isClosed || item != allRequests {
		t.Errorf("the limits are known: %v is enqueued", item)
	}
}

// What a former leader has named of requests that were deleted meanwhile does not stay.
func TestRequestsThatAFormerLeaderHasNamed(t *testing.T) {
	now := time.Now()
	r := poolsOf(t, setOf(t), &now)
	pools := twoNodes()
	pools[0].Spec.Requests = []ipam.RequestReference{{}}
	must.Succeed(t, r.pools.Replace([]any{pools[0], pools[1]}, ""))
	must.Succeed(t, r.requests.Replace(nil, ""))
	must.Succeed(t, r.limits.Replace(nil, ""))
	for i := range 2 {
		result, err := r.Reconcile(t.Context(), allRequests)
		if err != nil || r.queue.Len() != 1 || result.RequeueAfter != []time.Duration{checkInterval, 0}[i] {
			t.Errorf("pass %d: %d nodes are enqueued, again after %s, %v", i+1, r.queue.Len(), result.RequeueAfter, err)
		}
	}
}
