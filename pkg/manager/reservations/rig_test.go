package reservations

import (
	"context"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
	"github.com/leasehold-cni/leasehold/test/refusal"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// setOf returns a Set that has seen these reservations.
func setOf(t testing.TB, all ...*Reservation) *Set {
	s := NewSet(func(r *Reservation) *Reservation { return r })
	for _, r := range all {
		s.add(t, r)
	}
	return s
}

// add has the watch show a reservation, which may replace one of that name.
func (s *Set) add(t testing.TB, r *Reservation) {
	t.Helper()
	next := *r
	if before, found := s.Get(r.Namespace + "/" + r.Name); found && before.ResourceVersion == r.ResourceVersion {
		next.ResourceVersion += "0"
	}
	must(t, s.Update(&next))
}

// remove has the watch show the deletion of a reservation, which may not have been shown before.
func (s *Set) remove(t testing.TB, r *Reservation) {
	t.Helper()
	if _, found := s.Get(r.Namespace + "/" + r.Name); !found {
		s.add(t, r)
	}
	now, _ := s.Get(r.Namespace + "/" + r.Name)
	must(t, s.Delete(now))
}

// cached is the manager's client, whose cache has the node node1.
type cached struct{ client.Client }

func (c cached) Get(ctx context.Context, key types.NamespacedName, object client.Object, o ...client.GetOption) error {
	n, ok := object.(*corev1.Node)
	switch {
	case !ok:
		return c.Client.Get(ctx, key, object, o...)
	case key.Name != "node1":
		return apierrors.NewNotFound(corev1.Resource("nodes"), key.Name)
	}
	n.Name, n.UID = "node1", "uid-1"
	return nil
}

// newManager returns a manager that has not started, and its API server.
func newManager(t *testing.T) (*fakeapi.Cluster, manager.Manager) {
	t.Helper()
	kind := func(group, kind, resource string, namespaced bool) fakeapi.Kind {
		k := fakeapi.Kind{Resource: resource, Namespaced: namespaced}
		k.Group, k.Version, k.Kind = group, "v1", kind
		if group == ipam.GroupVersion.Group {
			k.Version = ipam.GroupVersion.Version
		}
		return k
	}
	c := fakeapi.NewCluster(t, kind("", "Node", "nodes", false),
		kind(ipam.GroupVersion.Group, "IPReservation", "ipreservations", true),
		kind(ipam.GroupVersion.Group, "NodeAddressPool", "nodeaddresspools", false),
		fakeapi.Kind{GroupVersionKind: ipam.GroupVersion.WithKind("AddressRequest"), Resource: "addressrequests",
			Namespaced: true, HasStatus: true})
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, ipam.AddToScheme(scheme))
	mgr, err := manager.New(c.Config, manager.Options{Scheme: scheme, Logger: logr.Discard(),
		HealthProbeBindAddress: "0", Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)}})
	must(t, err)
	return c, mgr
}

func TestSetupReturnsEveryError(t *testing.T) {
	refusal.Each(t, func() manager.Manager { _, mgr := newManager(t); return mgr }, func(mgr manager.Manager) error {
		_, err := Setup(mgr)
		return err
	})
}
