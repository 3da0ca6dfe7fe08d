package publish

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
)

const (
	// fieldManager is the name of the agent as a field manager of server-side apply.
	fieldManager = "leasehold-agent"
	resource     = "ipreservations"
)

// kind is a kind of objects that the agent applies.
type kind struct{ name, resource string }

// The parts of an object that are applied.
const (
	partSpec   = "spec"
	partStatus = "status"
)

// viewOf returns the part of an object that the agent uses, without anything else that users may
// write.
func viewOf(r *ipamv1.IPReservation) *ipamv1.IPReservation {
	v := &ipamv1.IPReservation{Spec: r.Spec, Status: r.Status, ObjectMeta: metav1.ObjectMeta{Namespace: r.Namespace,
		Name: r.Name, UID: r.UID, ResourceVersion: r.ResourceVersion}}
	for _, key := range []string{ipamv1.LabelNodeHash, ipamv1.LabelPodHash} {
		if value, found := r.Labels[key]; found {
			metav1.SetMetaDataLabel(&v.ObjectMeta, key, value)
		}
	}
	for _, o := range r.OwnerReferences {
		if owners := (nodeIdentity{r.Spec.NodeName, r.Spec.NodeUID}).owners(); o == owners[0] {
			v.OwnerReferences = owners
		}
	}
	return v
}

// store stores the response to a request.
func (p *Publisher) store(r *ipamv1.IPReservation) {
	p.known[kube.Name{Namespace: r.Namespace, Name: r.Name}] = r
}

// list lists the objects of the node from the API server's watch cache. What the cache lacks of the
// agent's own writes is written again.
func (p *Publisher) list(ctx context.Context) error {
	all := kube.NewInformer(viewOf, nil)
	ctx, cancel := context.WithTimeout(ctx, kube.RequestTimeout)
	defer cancel()
	lw := all.ListWatch(p.Clients.IPAM, resource, metav1.NamespaceAll, ipamv1.LabelNodeHash+"="+p.node.UID, "")
	if err := all.ListOnce(ctx, lw, "reservations of this node"); err != nil {
		return err
	}
	p.known, _ = all.Views()
	// Whoever may write labels can give it to a reservation of another node.
	maps.DeleteFunc(p.known, func(_ kube.Name, r *ipamv1.IPReservation) bool { return r.Spec.NodeName != p.Name })
	return nil
}

// readNamed reads each object that the manager names, once for each of its states, from etcd. It
// ignores a name that the API server rejects, and an object that cannot be decoded.
func (p *Publisher) readNamed(ctx context.Context, now time.Time) (err error) {
	former := p.named
	p.named = map[ipamv1.ReservationReference]bool{}
	for _, ref := range p.Pool.Named().Reservations {
		if former[ref] || err != nil {
			p.named[ref] = former[ref]
			continue
		}
		name := kube.Name{Namespace: ref.Namespace, Name: ref.Name}
		what := "reading reservation " + name.String()
		err = p.attempt(what, now, func() error {
			r := &ipamv1.IPReservation{}
			switch err := kube.Get(ctx, p.Clients.IPAM, resource, name, "", r); {
			case kube.IsTransient(err) || kube.IsNotServed(err) || apierrors.IsForbidden(err) ||
				apierrors.IsUnauthorized(err): // that is not about the name
				return err
			case kube.IsGone(err):
				delete(p.known, name)
			case err != nil:
				p.Log.Warn(what+" failed", "error", err)
				if errors.Is(err, kube.ErrUndecodable) {
					delete(p.known, name) // if it is this node's, what is wrong is written again
				}
			case r.Spec.NodeName == p.Name:
				p.store(viewOf(r))
			}
			p.named[ref] = true
			return nil
		})
	}
	return err
}

// apply applies a part of an object as the field manager of the agent: its status, or anything else
// together with the labels and owners. It takes over fields that other field managers own. It
// decodes the response into got. If that fails, because of another part of the object, got only
// identifies the object, and what it lacks is written later.
func apply(ctx context.Context, client rest.Interface, k kind, o metav1.ObjectMeta, part string, value any,
	got kube.Object) error {
	request := client.Patch(types.ApplyPatchType).Timeout(kube.RequestTimeout).Resource(k.resource).Name(o.Name).
		NamespaceIfScoped(o.Namespace, o.Namespace != "")
	if part == partStatus {
		o = metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}
		request = request.SubResource(partStatus)
	}
	body := map[string]any{"apiVersion": ipamv1.GroupVersion.String(), "kind": k.name, "metadata": o}
	if part != "" {
		body[part] = value
	}
	data, _ := json.Marshal(body) // cannot fail: strings, numbers, booleans and times
	err := kube.Into(request.Param("fieldManager", fieldManager).Param("force", "true").Body(data).Do(ctx), got)
	if errors.Is(err, kube.ErrUndecodable) {
		return nil
	}
	return err
}

// apply creates the object or updates its spec and labels, without spec.release, or updates the
// status of an object that exists.
func (p *Publisher) apply(ctx context.Context, want *ipamv1.IPReservation, part string) error {
	var value any = want.Spec
	if part == partStatus {
		value = want.Status
	}
	got := &ipamv1.IPReservation{}
	err := apply(ctx, p.Clients.IPAM, kind{"IPReservation", resource}, want.ObjectMeta, part, value, got)
	p.wrote(part, err)
	if err != nil {
		return err
	}
	v := viewOf(got)
	if part == partStatus {
		v.Status = want.Status
	} else {
		v.Labels, v.OwnerReferences, v.Spec = want.Labels, want.OwnerReferences, want.Spec
		v.Spec.Release = got.Spec.Release
	}
	p.store(v)
	return nil
}

// remove deletes an object. If an object with the same name and another UID exists, remove returns
// the API server's conflict error and deletes nothing. It returns nil if the object does not exist.
func (p *Publisher) remove(ctx context.Context, r *ipamv1.IPReservation) error {
	err := p.Clients.IPAM.Delete().Timeout(kube.RequestTimeout).Namespace(r.Namespace).Resource(resource).Name(r.Name).
		Body(&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &r.UID}}).Do(ctx).Error()
	if kube.IsGone(err) {
		err = nil
	}
	p.wrote("delete", err)
	if err != nil {
		return err
	}
	delete(p.known, kube.Name{Namespace: r.Namespace, Name: r.Name})
	return nil
}

// compare returns the parts of the existing object that differ from the desired one, in the order
// in which they are applied. If existing is nil, these are all parts. compare ignores fields that
// the agent does not write: spec.release, other labels and owners.
func compare(want, existing *ipamv1.IPReservation) (parts []string) {
	if existing == nil {
		return []string{partSpec, partStatus}
	}
	spec := existing.Spec
	spec.Release = ""
	differs := spec != want.Spec || !hasOwner(existing, want)
	for key, value := range want.Labels {
		differs = differs || existing.Labels[key] != value
	}
	if differs {
		parts = append(parts, partSpec)
	}
	a, b := want.Status, existing.Status
	if isClose(a, b) {
		a.HeldUntil, b.HeldUntil = nil, nil
	}
	if !equality.Semantic.DeepEqual(a, b) {
		parts = append(parts, partStatus)
	}
	return parts
}

// hasOwner reports whether an object has the owner of the desired one.
func hasOwner(existing, want metav1.Object) bool {
	return slices.Contains(existing.GetOwnerReferences(), want.GetOwnerReferences()[0])
}

// isClose reports whether two values of HeldUntil differ by at most two seconds. The agent computes
// HeldUntil from the boot clock and the wall clock, which are not read at the same moment.
func isClose(a, b ipamv1.IPReservationStatus) bool {
	if a.HeldUntil == nil || b.HeldUntil == nil {
		return false
	}
	d := a.HeldUntil.Sub(b.HeldUntil.Time)
	return d.Abs() <= 2*time.Second
}
