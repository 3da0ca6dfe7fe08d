package reservations

import (
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipam "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/manager/control"
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

// oneNode returns the nodes of a watch that has shown node1.
func oneNode(t testing.TB) *control.Nodes {
	nodes := kube.NewInformer(control.TrimNode, nil)
	must(t, nodes.Replace([]any{&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "uid-1"}}}, ""))
	return nodes
}

// setup adds what Setup adds to a manager, and the nodes.
func setup(mgr manager.Manager) error {
	nodes, err := control.WatchNodes(mgr)
	if err != nil {
		return err
	}
	_, err = Setup(mgr, nodes)
	return err
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
