package retention

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

// as is a pod with a generated name and the reservation name registry.
func as(annotation string) Pod {
	p := asking(pod(annotation), policy.Annotation, annotation, policy.ReserveAs, "registry")
	p.Name.Name, p.GenerateName = "registry-x7k2p", "registry-"
	p.Owner = Owner{Group: "apps", Kind: "ReplicaSet", Name: "registry"}
	return p
}

func TestDecideWithAReservationName(t *testing.T) {
	for _, c := range []struct {
		name, annotation, reserveAs string
		want                        string // window, owner and reservation name, or an error
	}{
		{"a generated name", "10", "registry", "10m0s  registry"},
		{"forever", "forever", "registry", "forever  registry"},
		{"no retention", "0", "registry", "0s  "},
		{"an invalid name", "10", "a.b", `annotation leasehold.dev/reserve-as: "a.b" is not a reservation name`},
		{"an empty name", "10", "", `annotation leasehold.dev/reserve-as: "" is not a reservation name`},
		{"an invalid name without retention", "0", "a.b", "0s  "},
		{"an invalid window", "ten", "registry", "annotation io.kubernetes.cri/reserved-ip-duration"},
	} {
		w, err := decide(asking(as(c.annotation), policy.Annotation, c.annotation, policy.ReserveAs, c.reserveAs))
		got := fmt.Sprint(w.Window, " ", w.Owner, " ", w.Reservation)
		if err != nil {
			got = err.Error()
		}
		if got != c.want && (err == nil || !strings.HasPrefix(got, c.want)) {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	ofSet := asking(pod("forever"), policy.Annotation, "forever", policy.ReserveAs, "registry")
	if w, err := decide(ofSet); w.Owner != "" || w.Reservation != "registry" || err != nil {
		t.Errorf("of a StatefulSet: %+v, %v", w, err)
	}
}

// of changes a lease to one of a pod with the reservation name registry.
func of(pod string, l lease.Lease) lease.Lease {
	l.Name, l.Reservation = pod, "registry"
	return l
}

func TestMakeWithReservationNames(t *testing.T) {
	const hour, own = time.Hour, "registry-x7k2p"
	deleting, other := as("60"), asking(as("60"), policy.Annotation, "60", policy.ReserveAs, "mirror")
	deleting.Expected, deleting.Deleting = false, true
	record := store.PodReservation{Namespace: "db", Name: own, UID: "u1", Reservation: "registry",
		Window: lease.Window(hour)}
	follow := []maintain.PodWindow{{Namespace: "db", Name: own, UID: "u1", Window: lease.Window(hour),
		Reservation: "registry"}}
	late := of("registry-aaaaa", held("u0", hour, hour))
	for _, c := range []struct {
		name   string
		pod    Pod
		leases []lease.Lease
		known  bool // there is a record
		want   plan
	}{
		{"before its sandbox", as("60"), nil, false, plan{Name: []store.PodReservation{record}}},
		{"recorded", as("60"), nil, true, plan{}},
		{"no window", as("0"), nil, false, plan{}},
		{"deleted before its sandbox", deleting, nil, false, plan{}},
		{"its lease has the name", as("60"), []lease.Lease{of(own, bound("u1", hour))}, false, plan{}},
		{"its lease has no name", as("60"), []lease.Lease{func() lease.Lease {
			l := of(own, bound("u1", hour))
			l.Reservation = ""
			return l
		}()}, false, plan{Follow: follow}},
		{"a hold of the name, in time", as("60"), []lease.Lease{of("registry-aaaaa", held("u0", hour, 0))}, true,
			plan{RequeueAfter: 59 * time.Minute}},
		{"a hold of the name, late", as("60"), []lease.Lease{late}, true,
			plan{Expect: []lease.Lease{late}, RequeueAfter: time.Minute}},
		{"a hold of another name", other, []lease.Lease{of("registry-aaaaa", held("u0", hour, hour))}, false,
			plan{Name: []store.PodReservation{{Namespace: "db", Name: own, UID: "u1", Reservation: "mirror",
				Window: lease.Window(hour)}}}},
		{"being deleted", deleting, []lease.Lease{of(own, bound("u1", hour))}, false, plan{}},
	} {
		view := maintain.NodeView{Leases: c.leases, Now: now,
			PodReservations: map[store.PodReservation]bool{}}
		if c.known {
			view.PodReservations[record] = true
		}
		got := makePlan(map[kube.Name]Pod{c.pod.Name: c.pod}, view, nil)
		got.Invalid = nil
		if diff := cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

func TestLeaving(t *testing.T) {
	const own = "registry-x7k2p"
	deleting := as("60")
	deleting.Deleting = true
	lives := of(own, bound("u1", time.Hour))
	shown := lives
	shown.Leaving = true
	leaves := []maintain.LeavingPod{{Namespace: "db", Name: own, UID: "u1"}}
	for _, c := range []struct {
		name   string
		pods   []Pod
		leases []lease.Lease
		was    string // the UID of a pod that was deleted
		want   []maintain.LeavingPod
	}{
		{"lives", []Pod{as("60")}, []lease.Lease{lives}, "", nil},
		{"being deleted", []Pod{deleting}, []lease.Lease{lives, lives}, "", leaves},
		{"being deleted, as its lease shows", []Pod{deleting}, []lease.Lease{shown}, "", nil},
		{"was deleted", nil, []lease.Lease{lives}, "u1", leaves},
		{"a mirror pod that was made again", []Pod{as("60")}, []lease.Lease{shown}, "",
			[]maintain.LeavingPod{{Namespace: "db", Name: own, UID: "u1", Stays: true}}},
		{"never seen", nil, []lease.Lease{lives}, "", nil},
		{"without a name", []Pod{deleting}, []lease.Lease{bound("u1", time.Hour)}, "", nil},
	} {
		pods := map[kube.Name]Pod{}
		for _, p := range c.pods {
			pods[p.Name] = p
		}
		if diff := cmp.Diff(c.want, leaving(pods, c.leases, map[string]bool{c.was: true})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// heldAt is a hold of the reservation name registry, which was released by a pod some time ago.
func heldAt(addr, pod string, since time.Duration) lease.Lease {
	l := of(pod, held("u-"+pod, time.Hour, since))
	l.Address = netip.MustParseAddr(addr)
	return l
}

// As many holds of a reservation name are extended as pods wait: those that the pods would get.
func TestHoldsThatStartingPodsNeed(t *testing.T) {
	const late = time.Hour - time.Second
	waiting := func(name string) Pod {
		p := as("60")
		p.Name.Name, p.UID = name, "u-"+name
		return p
	}
	boundTo := func(l lease.Lease) lease.Lease {
		l.State, l.Firm, l.Hold, l.ReleasedAt, l.BoundAt = lease.Bound, false, 0, lease.Instant{}, ago(time.Second)
		return l
	}
	first, second := heldAt("10.0.0.1", "a", late+2), heldAt("10.0.0.2", "b", late+1)
	third := heldAt("10.0.0.3", "c", late)
	second6, third6 := heldAt("fd00::2", "b", late+1), heldAt("fd00::3", "c", late)
	elsewhere := inNetwork("blue", heldAt("10.1.0.1", "a", late))
	early, forever := heldAt("10.0.0.4", "d", 0), heldAt("10.0.0.5", "e", 0)
	forever.Window, forever.Hold = lease.Forever, lease.Forever
	own := heldAt("10.0.0.6", "x", late)
	own.Reservation = ""
	for _, c := range []struct {
		name   string
		pods   []Pod
		leases []lease.Lease
		want   []lease.Lease
	}{
		{"no pod", nil, []lease.Lease{first, second, third}, nil},
		{"one pod", []Pod{waiting("x")}, []lease.Lease{first, second, third}, []lease.Lease{third}},
		{"two pods", []Pod{waiting("x"), waiting("y")}, []lease.Lease{first, second, third},
			[]lease.Lease{second, third}},
		{"more pods than holds", []Pod{waiting("x"), waiting("y")}, []lease.Lease{first},
			[]lease.Lease{first}},
		{"the pod's own", []Pod{waiting("a")}, []lease.Lease{first, second, third}, []lease.Lease{first}},
		{"the pod's own, and one for another pod", []Pod{waiting("a"), waiting("x")},
			[]lease.Lease{first, second, third}, []lease.Lease{first, third}},
		{"both families of one former pod", []Pod{waiting("x")},
			[]lease.Lease{first, second, third, second6, third6}, []lease.Lease{third, third6}},
		{"one in each network", []Pod{waiting("x")}, []lease.Lease{second, third, elsewhere},
			[]lease.Lease{elsewhere, third}},
		{"a later one lasts for longer", []Pod{waiting("x")}, []lease.Lease{third, early}, nil},
		{"a later one has no end", []Pod{waiting("x")}, []lease.Lease{third, forever}, nil},
		{"one of two pods has its address", []Pod{waiting("x"), waiting("y")},
			[]lease.Lease{second, third, boundTo(heldAt("10.0.0.7", "y", 0))}, []lease.Lease{third}},
		{"what a pod without the name had", []Pod{waiting("x")}, []lease.Lease{own}, nil},
	} {
		pods := map[kube.Name]Pod{}
		for _, p := range c.pods {
			pods[p.Name] = p
		}
		got := makePlan(pods, maintain.NodeView{Leases: c.leases, Now: now}, nil).Expect
		slices.SortFunc(got, func(x, y lease.Lease) int { return x.Address.Compare(y.Address) })
		slices.SortFunc(c.want, func(x, y lease.Lease) int { return x.Address.Compare(y.Address) })
		if diff := cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// A pod that never gets a sandbox keeps one address of its reservation name, and not all of them:
// the other holds end with their windows.
func TestAPodThatNeverStartsKeepsOneHoldOfItsName(t *testing.T) {
	for pods, want := range map[int][]string{
		0: nil, 1: {"10.0.0.5"}, 2: {"10.0.0.4", "10.0.0.5"}, 5: {"10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"},
	} {
		node := fakeapi.NewNode(t)
		start, ahead := node.Node.Clock(), time.Duration(0)
		node.Service.Node.Clock = func() lease.Instant {
			return lease.Instant{Wall: start.Wall.Add(ahead), Boot: start.Boot + ahead, BootID: start.BootID}
		}
		w := &Windows{Service: node.Service, Pods: NewPods(nil, "node1"),
			Core: fakeapi.New(t).Clients.Core, Log: fakeapi.Log}
		for i := range 4 {
			l := node.Bind(fmt.Sprint("10.0.0.", 2+i), fmt.Sprint("gone-", i), fmt.Sprint("u", i), 10*time.Minute, "")
			l.Reservation = "registry"
			node.Update(func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, l) })
			ahead += time.Second
			node.Release(l)
		}
		var waiting []any
		for i := range pods {
			waiting = append(waiting, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db",
				Name: fmt.Sprint("registry-", i), GenerateName: "registry-", UID: types.UID(fmt.Sprint("w", i)),
				ResourceVersion: "1",
				Annotations:     map[string]string{policy.Annotation: "10", policy.ReserveAs: "registry"}}})
		}
		if err := w.Pods.Replace(waiting, ""); err != nil {
			t.Fatal(err)
		}
		for range 40 {
			w.pass(t.Context())
			ahead += deferBelow / 2
		}
		view, err := node.List(t.Context(), func(l lease.Lease) bool { return !l.Lapsed(node.Node.Clock()) })
		if err != nil {
			t.Fatal(err)
		}
		var kept []string
		for _, l := range view.Leases {
			kept = append(kept, l.Address.String())
		}
		if !slices.Equal(kept, want) {
			t.Errorf("with %d pods that wait for 20 minutes %v are held, want %v", pods, kept, want)
		}
	}
}

// TestPassNamesPods verifies what passes write: the record of a pod that has no sandbox, the name
// of a lease, and that its pod is being deleted. The next pass writes nothing. The hold of a
// deleted namespace ends before a pod of its successor with the same reservation name is recorded.
func TestPassNamesPods(t *testing.T) {
	node, server := fakeapi.NewNode(t), fakeapi.New(t)
	w := &Windows{Service: node.Service, Pods: NewPods(nil, "node1"), Limits: NewLimits(nil), Core: server.Clients.Core,
		Log: fakeapi.Log}
	namespace := func(uid string) {
		server.Put("/api/v1/namespaces/db", corev1.Namespace{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
			ObjectMeta: metav1.ObjectMeta{Name: "db", UID: types.UID(uid)}})
	}
	pods := func(name, uid string, change ...func(*corev1.Pod)) {
		t.Helper()
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, GenerateName: "registry-",
			UID: types.UID(uid), ResourceVersion: "1",
			Annotations: map[string]string{policy.Annotation: "60", policy.ReserveAs: "registry"}}}
		for _, c := range change {
			c(p)
		}
		if err := w.Pods.Replace([]any{p}, ""); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(what string, want ...string) {
		t.Helper()
		for range 2 {
			w.pass(t.Context())
		}
		view, err := node.List(t.Context(), func(lease.Lease) bool { return true })
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range view.Leases {
			got = append(got, fmt.Sprint(l.State, " ", l.Name, " ", l.Reservation, " ", l.Leaving))
		}
		for p := range view.PodReservations {
			got = append(got, "record "+p.Name+" "+p.Reservation+" "+p.Window.String())
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	namespace("ns1")
	node.Update(func(*store.Tx) error { return nil })
	pods("registry-aaaaa", "u1")
	expect("no sandbox", "record registry-aaaaa registry 1h0m0s")
	node.Bind("10.0.0.2", "registry-aaaaa", "u1", 0, "")
	expect("a sandbox", "Bound registry-aaaaa registry false", "record registry-aaaaa registry 1h0m0s")
	pods("registry-aaaaa", "u1", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} })
	expect("being deleted", "Bound registry-aaaaa registry true", "record registry-aaaaa registry 1h0m0s")
	view, err := node.List(t.Context(), func(lease.Lease) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	node.Release(view.Leases[0])
	node.Bind("10.0.0.3", "registry-ccccc", "u3", 0, "")
	pods("registry-ccccc", "u3")
	expect("another one", "Bound registry-ccccc registry false", "Held registry-aaaaa registry false",
		"record registry-aaaaa registry 1h0m0s")
	pods("registry-ddddd", "u4")
	expect("that one was force-deleted", "Bound registry-ccccc registry true", "Held registry-aaaaa registry false",
		"record registry-aaaaa registry 1h0m0s", "record registry-ddddd registry 1h0m0s")
	named := node.Bind("10.0.0.4", "registry-eeeee", "u5", time.Hour, "")
	named.Reservation = "registry"
	node.Update(func(tx *store.Tx) error { return tx.Put(named.Pool, named.Address, named) })
	expect("the watch does not show one yet", "Bound registry-ccccc registry true",
		"Bound registry-eeeee registry false",
		"Held registry-aaaaa registry false", "record registry-aaaaa registry 1h0m0s",
		"record registry-ddddd registry 1h0m0s")
	node.Update(func(tx *store.Tx) error { return tx.Put(named.Pool, named.Address, lease.Lease{}) })
	namespace("ns2")
	pods("registry-bbbbb", "u2")
	expect("a pod of another namespace of that name", "Bound registry-ccccc registry true",
		"record registry-aaaaa registry 1h0m0s", "record registry-bbbbb registry 1h0m0s",
		"record registry-ddddd registry 1h0m0s")
}
