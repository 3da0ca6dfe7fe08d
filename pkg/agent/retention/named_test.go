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
			plan{Expect: refs(late), RequeueAfter: time.Minute}},
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
		if diff := cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()); diff != "" {
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
