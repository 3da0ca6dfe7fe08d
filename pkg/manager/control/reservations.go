package control

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// ClockLag is how far the clock of a node may be behind the manager's before holds seem to have
// ended that have not. The agent of the node removes the reservation when a hold ends, so the time
// matters only if the agent does not run.
const ClockLag = 3 * time.Minute

// A Reservation has the fields of an IPReservation that the manager needs. (An IPReservation is the
// API object that shows the addresses of a pod on a node.) The informers keep such views instead of
// the API objects: with 50,000 of each, they make up most of the manager's memory. The CRD limits
// the length of each text.
type Reservation struct {
	metav1.ObjectMeta // namespace, name, UID, resource version, generation, times

	Pod, Node string
	For       string // the reservation name; "" if the addresses are for pods of the same name
	PodUID    string
	Bound     bool
	Confirmed bool         // the pod can start on the node
	Addresses string       // joined by commas
	Primary   string       // one of the pod's own network, by which they are counted (Primary)
	Until     time.Time    // end of the hold; zero if bound, or if the hold has no end
	Written   time.Time    // when the agent last changed the status, by the API server's clock
	Window    lease.Window // 0 if not known
	Releasing bool         // a user has asked to release these addresses
}

// viewReservation returns the Reservation of an API object.
func viewReservation(r *ipam.IPReservation) *Reservation {
	v := &Reservation{
		ObjectMeta: Identity(&r.ObjectMeta),
		Pod:        r.Spec.PodName,
		For:        Intern(r.Status.Reservation),
		Node:       Intern(r.Spec.NodeName),
		PodUID:     r.Status.PodUID,
		Bound:      r.Status.State == ipam.Bound,
		Confirmed:  r.Status.Confirmed,
	}
	v.Releasing = r.Status.ID != "" && r.Spec.Release == r.Status.ID
	var all, own []string
	for _, a := range r.Status.Addresses {
		all = append(all, a.Address)
		if a.Interface == "eth0" {
			own = append(own, a.Address)
		}
	}
	v.Addresses = cmp.Or(r.Status.AddressList, strings.Join(all, ","))
	v.Primary = Primary(cmp.Or(strings.Join(own, ","), v.Addresses))
	if r.Status.HeldUntil != nil {
		v.Until = r.Status.HeldUntil.Time
	}
	v.Window, _ = policy.ParseWindow(r.Status.Window)
	for _, f := range r.ManagedFields {
		if f.Subresource == "status" && f.Time != nil && f.Time.After(v.Written) {
			v.Written = f.Time.Time
		}
	}
	return v
}

// Primary returns one of the addresses in a list that is joined by commas, the same for every
// order.
func Primary(addresses string) string { return slices.Min(strings.Split(addresses, ",")) }

// PodKey returns the "namespace/name" of the pod.
func (r *Reservation) PodKey() string { return r.Namespace + "/" + r.Pod }

// End returns when a reservation is over if it is not changed before, zero for never.
func (r *Reservation) End() time.Time {
	if r.Bound || r.Until.IsZero() {
		return time.Time{}
	}
	return r.Until.Add(ClockLag)
}

// IsOver reports whether a reservation is a hold that has ended.
func (r *Reservation) IsOver(now time.Time) bool { return !r.End().IsZero() && !r.End().After(now) }

// HeldSince returns when a hold began. It returns zero if the reservation is not a hold, or if the
// hold has no end or an unknown window.
func (r *Reservation) HeldSince() time.Time {
	if r.Bound || r.Until.IsZero() || r.Window <= 0 {
		return time.Time{}
	}
	return r.Until.Add(-time.Duration(r.Window))
}

// Reservations are the reservations of the cluster, as this replica sees them.
type Reservations struct{ *kube.Informer[*Reservation] }

// The indexes of Reservations.
const (
	byPod  = "pod"
	byNode = "node"
	byName = "name"
)

// NewReservations returns Reservations of objects of the type O, which have none yet. The manager
// has those of WatchReservations.
func NewReservations[O metav1.Object](view func(O) *Reservation) *Reservations {
	return &Reservations{kube.NewInformer(view, kube.Indexes[*Reservation]{
		byPod:  func(r *Reservation) []string { return []string{r.PodKey()} },
		byNode: func(r *Reservation) []string { return []string{r.Node} },
		byName: func(r *Reservation) []string { return IndexName(r.Namespace, r.For, r.Node) }})}
}

// OfPod returns the reservations of the pods with a key "namespace/name".
func (s *Reservations) OfPod(key string) []*Reservation { return s.ByIndex(byPod, key) }

// OfNode returns the reservations of a node.
func (s *Reservations) OfNode(node string) []*Reservation { return s.ByIndex(byNode, node) }

// OfName returns the reservations with a key of NodeKey.
func (s *Reservations) OfName(key string) []*Reservation { return s.ByIndex(byName, key) }

// NameKey returns the key of a reservation name. It differs from the keys "namespace/pod", because
// the name of a pod has no colon.
func NameKey(namespace, name string) string { return namespace + "/as:" + name }

// NodeKey returns the key of a reservation name on a node.
func NodeKey(nameKey, node string) string { return nameKey + "/" + node }

// IndexName returns the values of an index by NodeKey of something with a reservation name on a
// node, none if the name is "".
func IndexName(namespace, name, node string) []string {
	if name == "" {
		return nil
	}
	return []string{NodeKey(NameKey(namespace, name), node)}
}

// WatchReservations adds the watch of the reservations to a manager that has not started.
func WatchReservations(mgr manager.Manager) (*Reservations, error) {
	set := NewReservations(viewReservation)
	return set, Watch(mgr, set.Informer, "ipreservations", Objects{
		Kind: ipam.GroupVersion.WithKind("IPReservation"), Resource: ipam.Resource.Resource})
}
