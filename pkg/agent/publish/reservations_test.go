package publish

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
)

// name has the manager name reservations.
func (p *fixture) name(refs ...ipamv1.ReservationReference) {
	p.t.Helper()
	o := ipamv1.NodeAddressPool{}
	p.server.Get(poolPath, &o)
	o.Name, o.Spec.Reservations = "node1", refs
	p.server.Put(poolPath, o)
}

const readOfMine = "namespaces/db/ipreservations/" + mine

// A named object is read once for each of its states, and the publisher does what it says.
func TestNamedReservations(t *testing.T) {
	p := newFixture(t)
	p.node.Release(p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, ""))
	p.publish()
	p.expect("the start", p.reads(), resource)
	p.publish()
	p.expect("nothing is named", p.reads())
	ref := func(name, uid string, generation int64) ipamv1.ReservationReference {
		return ipamv1.ReservationReference{Namespace: "db", Name: name, UID: uid, Generation: generation}
	}

	var r ipamv1.IPReservation
	p.server.Get(objects+mine, &r)
	r.Spec.Release = id2
	p.server.Put(objects+mine, r)
	p.name(ref(mine, "1", 2))
	p.expect("another lease is to be released", p.publish())
	p.expect("changed", p.reads(), readOfMine)
	p.name(ref(mine, "1", 2), ref("other-5f1c9a02", "2", 1))
	p.publish()
	p.expect("another is named", p.reads(), "namespaces/db/ipreservations/other-5f1c9a02")
	p.publish()
	p.expect("the same are named", p.reads())

	p.server.Remove(objects + mine)
	p.name(ref(mine, "1", 0))
	p.expect("deleted", p.publish(), "PATCH "+mine, "PATCH status")
	p.expect("deleted", p.reads(), readOfMine)

	p.server.Get(objects+mine, &r)
	r.Spec.Release = r.Status.ID
	p.server.Put(objects+mine, r)
	p.name(ref(mine, "3", 2))
	p.publish()
	p.expect("changed again", p.reads(), readOfMine)
	p.expect("released", p.publish(), "DELETE "+mine)

	p.server.Put(objects+"theirs", ipamv1.IPReservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "theirs"},
		Spec: ipamv1.IPReservationSpec{PodName: "db-0", NodeName: "node2"}})
	p.name(ref("theirs", "4", 1))
	p.publish()
	p.expect("another node's", p.reads(), "namespaces/db/ipreservations/theirs")
	check.Equal(t, len(p.known), 0, "it is stored:", p.known)
}

// A read that fails is repeated, and so is a list. A later list that fails keeps nothing from being
// written.
func TestReadsAreRepeated(t *testing.T) {
	p := newFixture(t)
	p.publish()
	p.name(ipamv1.ReservationReference{Namespace: "db", Name: mine})
	p.reject(http.StatusServiceUnavailable, at(group+readOfMine))
	p.publish()
	p.expect("a failed read", p.reads(), readOfMine)
	p.after(p.next)
	p.reject(http.StatusForbidden, at(group+readOfMine)) // the role was taken away for a while
	p.publish()
	p.expect("the read is repeated", p.reads(), readOfMine)
	p.after(p.next)
	p.server.Reject(nil)
	p.publish()
	p.expect("and succeeds", p.reads(), readOfMine)
	p.after(listInterval - time.Minute)
	p.publish()
	p.expect("no change", p.reads())
	p.after(listInterval/2 + time.Minute)
	p.node.Bind("10.0.0.2", "db-0", "u1", 30*24*time.Hour, "")
	p.reject(http.StatusForbidden, at(group+resource))
	p.expect("18 hours later", p.publish(), "PATCH "+mine, "PATCH status")
	p.expect("a failed list", p.reads(), resource)
	p.server.Reject(nil)
	p.after(2 * time.Minute)
	p.publish()
	p.expect("the list is repeated", p.reads(), resource)
}

// An object that was deleted without the agent's knowledge is created again after the write that
// does not find it, and the others are listed, because they may have been deleted, too.
func TestReservationThatWasDeleted(t *testing.T) {
	p := newFixture(t)
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.node.Bind("10.0.0.3", "db-1", "u2", time.Hour, "")
	p.publish()
	p.node.Release(l)
	p.after(ipamv1.ReturnDelay)
	p.server.Remove(objects + mine)
	p.server.Remove(objects + "db-1-5f1c9a02")
	p.expect("deleted", p.publish(), "PATCH status")
	p.after(2 * time.Second)
	if writes := p.publish(); len(writes) != 4 || p.state(mine) != "Held 10.0.0.2" ||
		p.state("db-1-5f1c9a02") != "Bound 10.0.0.3" {
		t.Errorf("again: %q, %s", writes, p.state(mine))
	}
	p.expect("listed", p.reads(), resource)
	p.expect("no change", p.publish())
}

// A user writes as much into the metadata of a reservation as the API server accepts.
func TestObjectsWithLongTexts(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	r := &ipamv1.IPReservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: mine, UID: "r1",
		ResourceVersion: "1", Labels: map[string]string{ipamv1.LabelNodeHash: "h", "a": long},
		Annotations: map[string]string{"a": long}, Finalizers: []string{long},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: long, Name: long, UID: "u"}}},
		Spec:   ipamv1.IPReservationSpec{PodName: "db-0", NodeName: "node1", Release: "1"},
		Status: ipamv1.IPReservationStatus{ID: "1"}}
	got := viewOf(r)
	if size := len(fmt.Sprintf("%#v", *got)); size > 4<<10 || got.UID != "r1" || got.ResourceVersion != "1" ||
		got.Labels[ipamv1.LabelNodeHash] != "h" || got.Spec.Release != "1" {
		t.Errorf("the view of an object has %d bytes: %.300v", size, got)
	}
}

// An object that somebody has replaced by another one of the name since it was read is not deleted.
func TestDeletionOfAnObjectThatWasReplaced(t *testing.T) {
	p := newFixture(t)
	l := p.node.Bind("10.0.0.2", "db-0", "u1", time.Hour, "")
	p.publish()
	var r ipamv1.IPReservation
	p.server.Get(objects+mine, &r)
	r.UID = "another"
	p.server.Put(objects+mine, r)
	p.node.Update(func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, lease.Lease{}) })
	p.expect("the lease has ended", p.publish(), "DELETE "+mine)
	if p.state(mine) == "none" {
		t.Error("it is deleted")
	}
	p.list()
	p.expect("the new one is known", p.publish(), "DELETE "+mine)
	check.Equal(t, p.state(mine), "none", "after its deletion")
}
