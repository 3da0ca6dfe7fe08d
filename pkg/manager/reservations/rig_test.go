package reservations

import (
	"context"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
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

// startManager starts a manager with what Setup adds, and returns its API server.
func startManager(t *testing.T) *fakeapi.Cluster {
	t.Helper()
	kind := func(kind string, resource schema.GroupVersionResource, namespaced bool) fakeapi.Kind {
		return fakeapi.Kind{GroupVersionKind: ipam.GroupVersion.WithKind(kind), Resource: resource.Resource,
			Namespaced: namespaced, HasStatus: true}
	}
	c := fakeapi.NewCluster(t, kind("IPReservation", ipam.Resource, true),
		kind("NodeAddressPool", ipam.NodeAddressPoolResource, false),
		kind("AddressRequest", ipam.AddressRequestResource, true))
	scheme := runtime.NewScheme()
	must(t, ipam.AddToScheme(scheme))
	mgr, err := manager.New(c.Config, manager.Options{Scheme: scheme, Logger: logr.Discard(),
		HealthProbeBindAddress: "0", Metrics: metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)}})
	must(t, err)
	_, err = Setup(mgr)
	must(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	return c
}
