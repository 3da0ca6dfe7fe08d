package publish

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

// API servers before Kubernetes 1.31 do not support field selectors for custom resources. The test
// uses a fake one.
func TestOldServerSelectsByLabel(t *testing.T) {
	var mu sync.Mutex
	var lists []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		w.Header().Set("Content-Type", "application/json")
		mu.Lock()
		lists = append(lists, q.Get("fieldSelector")+q.Get("labelSelector"))
		mu.Unlock()
		switch {
		case q.Get("fieldSelector") != "":
			w.WriteHeader(http.StatusBadRequest)
			json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
				Status: "Failure",
				Reason: metav1.StatusReasonBadRequest, Code: 400, Message: "field label not supported: spec.nodeName"})
		default:
			mine := ipamv1.IPReservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "mine",
				ResourceVersion: "1"},
				Spec: ipamv1.IPReservationSpec{PodName: "db-0", NodeName: "node1"}}
			other := mine
			other.Name, other.Spec.NodeName = "other", "of-the-same-hash"
			json.NewEncoder(w).Encode(ipamv1.IPReservationList{
				TypeMeta: metav1.TypeMeta{APIVersion: ipamv1.GroupVersion.String(), Kind: "IPReservationList"},
				ListMeta: metav1.ListMeta{ResourceVersion: "2"}, Items: []ipamv1.IPReservation{mine, other}})
		}
	}))
	defer server.Close()
	clients, err := informer.NewClients(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	o := NewObjects(clients.IPAM, "node1", NewPool(clients.IPAM, "node1"), fakeapi.Log)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	changes, done := o.Changes(), make(chan struct{})
	go func() { defer close(done); _ = o.Run(ctx) }()
	defer func() { stop(); server.CloseClientConnections(); <-done }()
	select {
	case <-changes:
	case <-ctx.Done():
		t.Fatal("no list received")
	}
	mu.Lock()
	defer mu.Unlock()
	if want := ipamv1.LabelNodeHash + "=" + ipamv1.Hash("node1"); lists[0] != "spec.nodeName=node1" ||
		lists[len(lists)-1] != want {
		t.Errorf("selectors: %q", lists)
	}
	if r, _ := o.Get(informer.Name{Namespace: "db", Name: "mine"}.String()); r == nil || r.Spec.PodName != "db-0" {
		t.Errorf("ours: %+v", r)
	}
	if r, _ := o.Get(informer.Name{Namespace: "db", Name: "other"}.String()); r != nil && r.Spec.PodName != "" {
		t.Errorf("another node's: %+v", r)
	}
}

// name delivers a NodeAddressPool that names reservations.
func (p *fixture) name(refs ...ipamv1.ReservationReference) {
	p.t.Helper()
	o := &ipamv1.NodeAddressPool{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}
	o.Spec.Reservations = refs
	if err := p.Objects.pool.Replace([]any{o}, ""); err != nil {
		p.t.Fatal(err)
	}
}

// read runs a pass of the Objects and returns its requests, without the prefix of the group.
func (p *fixture) read(now time.Time) (requests []string) {
	p.t.Helper()
	p.server.Requests()
	p.Objects.pass(p.t.Context(), now)
	for _, r := range p.server.Requests() {
		requests = append(requests, strings.Replace(r, "/apis/ipam.leasehold.dev/v1alpha1/", "", 1))
	}
	return requests
}

const (
	listOfMine = "GET ipreservations"
	readOfMine = "GET namespaces/db/ipreservations/" + mine
)

// A named object is read once for each of its states, and the publisher does what it says.
func TestNamedReservations(t *testing.T) {
	p := newFixture(t)
	p.node.Release(p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, ""))
	begin := time.Now()
	p.expect("the start", p.read(begin), listOfMine)
	p.publish()
	p.expect("nothing is named", p.read(begin))
	changes := p.Objects.Changes()
	ref := func(name, uid string, generation int64) ipamv1.ReservationReference {
		return ipamv1.ReservationReference{Namespace: "db", Name: name, UID: uid, Generation: generation}
	}

	var r ipamv1.IPReservation
	p.server.Get(objects+mine, &r)
	r.Spec.Release = id2
	p.server.Put(objects+mine, r)
	p.name(ref(mine, "1", 2))
	p.expect("changed", p.read(begin), readOfMine)
	if len(changes) != 1 {
		t.Error("no change is signalled")
	}
	p.expect("another lease is to be released", p.publish(), "PATCH status")
	p.name(ref(mine, "1", 2), ref("other-5f1c9a02", "2", 1))
	p.expect("another is named", p.read(begin), "GET namespaces/db/ipreservations/other-5f1c9a02")
	p.expect("the same are named", p.read(begin))

	p.server.Remove(objects + mine)
	p.name(ref(mine, "1", 0))
	p.expect("deleted", p.read(begin), readOfMine)
	p.expect("deleted", p.publish(), "PATCH "+mine, "PATCH status")

	p.server.Get(objects+mine, &r)
	r.Spec.Release = r.Status.ID
	p.server.Put(objects+mine, r)
	p.name(ref(mine, "3", 2))
	p.expect("changed again", p.read(begin), readOfMine)
	p.publish()
	p.expect("released", p.publish(), "DELETE "+mine)

	p.server.Put(objects+"theirs", ipamv1.IPReservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "theirs"},
		Spec: ipamv1.IPReservationSpec{PodName: "db-0", NodeName: "node2"}})
	p.name(ref("theirs", "4", 1))
	p.expect("another node's", p.read(begin), "GET namespaces/db/ipreservations/theirs")
	if len(p.Objects.List()) != 0 {
		t.Errorf("it is stored: %+v", p.Objects.List())
	}
}

// A read that fails is repeated; so is a list.
func TestReadsAreRepeated(t *testing.T) {
	p := newFixture(t)
	begin := time.Now()
	p.server.Reject(fakeapi.Always(http.StatusServiceUnavailable))
	var pauses []time.Duration
	for range 10 {
		pauses = append(pauses, p.Objects.pass(t.Context(), begin))
	}
	if pauses[0] > 2*time.Second || pauses[9] < 30*time.Second || pauses[9] > time.Minute {
		t.Errorf("repeated after %v", pauses)
	}
	p.server.Reject(nil)
	p.expect("back", p.read(begin), listOfMine)
	p.server.Reject(fakeapi.Always(http.StatusServiceUnavailable))
	p.name(ipamv1.ReservationReference{Namespace: "db", Name: mine})
	if after := p.Objects.pass(t.Context(), begin); after > 2*time.Second {
		t.Errorf("a failed read is repeated after %s", after)
	}
	p.server.Reject(nil)
	p.expect("back", p.read(begin), readOfMine)
	p.expect("no change", p.read(begin.Add(listInterval-time.Second)))
	later := begin.Add(listInterval * 3 / 2)
	p.expect("18 hours later", p.read(later), listOfMine)
	p.Objects.Relist()
	p.expect("it has to be listed soon", p.read(later))
	p.expect("two seconds later", p.read(later.Add(2*time.Second)), listOfMine)
	p.expect("no change", p.read(later.Add(3*time.Second)))
}

// An object that was written while a list was under way may be missing in the list.
func TestListDoesNotUndoAWrite(t *testing.T) {
	p := newFixture(t)
	p.server.Reject(func(r *http.Request) int {
		if r.Method == http.MethodGet {
			o := &ipamv1.IPReservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: mine},
				Spec: ipamv1.IPReservationSpec{PodName: "db-0", NodeName: "node1"}}
			if err := p.Objects.ApplySpec(t.Context(), o); err != nil {
				t.Error(err)
			}
			p.server.Remove(objects + mine)
		}
		return 0
	})
	if err := p.Objects.list(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r, _ := p.Objects.Get("db/" + mine); r == nil || r.Spec.PodName != "db-0" {
		t.Errorf("after the list: %+v", r)
	}
	p.server.Reject(nil)
	if err := p.Objects.list(t.Context()); err != nil || len(p.Objects.List()) != 0 {
		t.Errorf("after another list: %+v, %v", p.Objects.List(), err)
	}
}

// A write that fails because the CRD is missing makes the agent list until the CRD is there, and
// then the objects are written.
func TestReservationsThatAreNotServed(t *testing.T) {
	p := newFixture(t)
	begin := time.Now()
	p.read(begin)
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.publish()
	p.node.Release(l)
	p.after(ipamv1.ReturnDelay)
	p.server.Reject(func(r *http.Request) int {
		if strings.HasPrefix(r.URL.Path, "/apis/ipam.leasehold.dev/") {
			return fakeapi.NotServed
		}
		return 0
	})
	wake := p.Objects.wake.Subscribe()
	p.expect("not served", p.publish(), "PATCH status")
	p.server.Remove(objects + mine)
	if len(wake) != 1 {
		t.Error("no list is requested")
	}
	if after := p.Objects.pass(t.Context(), begin); after > 2*time.Second {
		t.Errorf("the list is after %s", after)
	}
	p.expect("not served yet", p.read(begin.Add(2*time.Second)), listOfMine)
	p.node.Bind("10.0.0.3", "db-1", "u2", time.Hour, "")
	p.queue.Add(object)
	p.expect("waiting", p.publish())
	p.server.Reject(nil)
	p.expect("served", p.read(begin.Add(5*time.Second)), listOfMine)
	writes := p.publish()
	slices.Sort(writes)
	p.expect("served", writes, "PATCH "+mine, "PATCH db-1-5f1c9a02", "PATCH status", "PATCH status")
}

// An object that was deleted without the agent's knowledge is created again by the write that does
// not find it, and the others are listed, because they may have been deleted, too.
func TestReservationThatWasDeleted(t *testing.T) {
	p := newFixture(t)
	begin := time.Now()
	p.read(begin)
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.publish()
	p.node.Release(l)
	p.after(ipamv1.ReturnDelay)
	p.server.Remove(objects + mine)
	p.expect("deleted", p.publish(), "PATCH status")
	if len(p.delayed) != 1 {
		t.Fatalf("repeated after %v, want once", p.delayed)
	}
	if after := p.Objects.pass(t.Context(), begin); after > 2*time.Second {
		t.Errorf("the list is after %s", after)
	}
	p.queue.Add(object)
	p.expect("again", p.publish(), "PATCH "+mine, "PATCH status")
	p.expect("listed", p.read(begin.Add(2*time.Second)), listOfMine)
	if got := p.state(mine); got != "Held 10.0.0.2" {
		t.Error(got)
	}
	p.expect("no change", p.publish())
}

// The agent watches its NodeAddressPool by name, and reads what it names.
func TestNodeAddressPoolIsWatched(t *testing.T) {
	c := fakeapi.NewCluster(t,
		fakeapi.Kind{GroupVersionKind: ipamv1.GroupVersion.WithKind("IPReservation"), Resource: resource,
			Namespaced: true},
		fakeapi.Kind{GroupVersionKind: ipamv1.GroupVersion.WithKind("NodeAddressPool"), Resource: "nodeaddresspools"})
	clients, err := informer.NewClients(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	pool := NewPool(clients.IPAM, "node1")
	o := NewObjects(clients.IPAM, "node1", pool, fakeapi.Log)
	ctx, stop := context.WithCancel(t.Context())
	var done sync.WaitGroup
	for _, run := range []func(context.Context) error{pool.Run, o.Run} {
		done.Go(func() { _ = run(ctx) })
	}
	defer func() { stop(); done.Wait() }()
	c.Until("a list", func() bool { _, listed := o.Views(); return listed && pool.HasSynced() })
	ref := ipamv1.ReservationReference{Namespace: "db", Name: "mine", UID: "1", Generation: 1}
	c.Put(objects+ref.Name, ipamv1.IPReservation{Spec: ipamv1.IPReservationSpec{PodName: "db-0", NodeName: "node1"}})
	c.Put(poolPath, ipamv1.NodeAddressPool{Spec: ipamv1.NodeAddressPoolSpec{
		Reservations: []ipamv1.ReservationReference{ref}}})
	c.Until("the object is read", func() bool { return len(o.List()) == 1 })
	c.Remove(objects + ref.Name)
	ref.Generation = 0
	c.Put(poolPath, ipamv1.NodeAddressPool{Spec: ipamv1.NodeAddressPoolSpec{
		Reservations: []ipamv1.ReservationReference{ref}}})
	c.Until("it is deleted", func() bool { return len(o.List()) == 0 })
	c.Remove(poolPath)
	c.Until("the NodeAddressPool is deleted", func() bool { return pool.Object() == nil && pool.Named() == nil })
}

// TestObjectsWithLongTexts has a user write as much into the metadata of a reservation as the API
// server accepts.
func TestObjectsWithLongTexts(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	o := NewObjects(nil, "node1", NewPool(nil, "node1"), fakeapi.Log)
	meta := metav1.ObjectMeta{Namespace: "db", Name: "db-0-0a0a0a0a", UID: "r1", ResourceVersion: "1",
		Labels:      map[string]string{ipamv1.LabelNodeHash: "h", "a": long},
		Annotations: map[string]string{"a": long}, Finalizers: []string{long},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: long, Name: long, UID: "u"}}}
	for _, node := range []string{"node1", "of-the-same-hash"} {
		r := &ipamv1.IPReservation{ObjectMeta: meta, Spec: ipamv1.IPReservationSpec{PodName: "db-0", NodeName: node,
			Release: "1"}, Status: ipamv1.IPReservationStatus{ID: "1", Conditions: []metav1.Condition{
			{Type: "Other", Message: long}, {Type: conditionReleased}}}}
		if err := o.Replace([]any{r}, ""); err != nil {
			t.Fatal(err)
		}
		got, _ := o.Get("db/db-0-0a0a0a0a")
		if size := len(fmt.Sprintf("%#v", *got)); size > 4<<10 || got.UID != "r1" || got.ResourceVersion != "1" ||
			got.Labels[ipamv1.LabelNodeHash] != "h" || (got.Spec.Release == "1") != (node == "node1") {
			t.Errorf("the view of an object of %s has %d bytes: %.300v", node, size, got)
		}
	}
}
