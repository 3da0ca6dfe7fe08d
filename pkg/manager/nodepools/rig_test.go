package nodepools

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
	"github.com/leasehold-cni/leasehold/test/must"
)

type reservation = control.Reservation

var noon = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

// setOf returns Reservations that have seen these reservations.
func setOf(t testing.TB, all ...*reservation) *control.Reservations {
	s := control.NewReservations(func(r *reservation) *reservation { return r })
	for _, r := range all {
		show(t, s, r)
	}
	return s
}

// show has the watch show a reservation, which may replace one of that name.
func show(t testing.TB, s *control.Reservations, r *reservation) {
	t.Helper()
	next := *r
	if before, found := s.Get(r.Namespace + "/" + r.Name); found && before.ResourceVersion == r.ResourceVersion {
		next.ResourceVersion += "0"
	}
	must.Succeed(t, s.Update(&next))
}

// remove has the watch show the deletion of a reservation, which may not have been shown before.
func remove(t testing.TB, s *control.Reservations, r *reservation) {
	t.Helper()
	if _, found := s.Get(r.Namespace + "/" + r.Name); !found {
		show(t, s, r)
	}
	now, _ := s.Get(r.Namespace + "/" + r.Name)
	must.Succeed(t, s.Delete(now))
}

// api is a client that keeps what is written.
type api struct {
	client.Client
	patches  []string // "name patch"
	requests map[string]*ipam.AddressRequest
	writes   int // of statuses
	err      error
	tooLarge func(client.Object) bool // reports whether the status of an object cannot be written
}

func (a *api) Patch(_ context.Context, o client.Object, patch client.Patch, _ ...client.PatchOption) error {
	data, err := patch.Data(o)
	a.patches = append(a.patches, o.GetName()+" "+string(data))
	return cmp.Or(err, a.err)
}

func (a *api) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	r, found := a.requests[key.String()]
	if !found {
		return apierrors.NewNotFound(ipam.AddressRequestResource.GroupResource(), key.Name)
	}
	r.DeepCopyInto(into.(*ipam.AddressRequest))
	return nil
}

func (a *api) Status() client.SubResourceWriter { return statuses{of: a} }

type statuses struct {
	client.SubResourceWriter
	of *api
}

func (s statuses) Patch(ctx context.Context, o client.Object, patch client.Patch, _ ...client.SubResourcePatchOption,
) error {
	return s.of.Patch(ctx, o, patch)
}

func (s statuses) Update(_ context.Context, o client.Object, _ ...client.SubResourceUpdateOption) error {
	if s.of.writes++; s.of.err != nil {
		return s.of.err
	}
	if s.of.tooLarge != nil && s.of.tooLarge(o) {
		return errors.New("etcdserver: request is too large")
	}
	r := o.(*ipam.AddressRequest).DeepCopy()
	r.ResourceVersion += "0"
	s.of.requests[client.ObjectKeyFromObject(r).String()] = r
	return nil
}
