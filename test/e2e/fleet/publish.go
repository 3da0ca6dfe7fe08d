package fleet

import (
	"context"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/agent"
	"github.com/leasehold-cni/leasehold/pkg/agent/podcache"
	"github.com/leasehold-cni/leasehold/pkg/agent/publish"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/env"
	"github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// publishing returns the tasks of the node agent that publish the leases of a node.
func (f *Fleet) publishing(n *Node) ([]agent.Task, error) {
	here, err := env.Read(func(string) string { return "" })
	if err != nil {
		return nil, err
	}
	clients, err := informer.NewClients(f.API)
	if err != nil {
		return nil, err
	}
	log := f.Log.With("node", n.Name)
	pods := podcache.New(clients.Core, n.Name)
	pool := publish.NewPool(clients.IPAM, n.Name)
	publisher := &publish.Publisher{
		Service: &maintain.Service{Node: &transact.Node{Store: store.New(n.Dirs), Host: here.Host, Clock: here.Clock,
			CacheDirs: []string{n.caches()}}},
		Node: n.Name, Clients: clients, Pods: pods, Pool: pool, Log: log,
		Active:  func() []cniconf.Status { return nil },
		Metrics: publish.NewMetrics(prometheus.NewRegistry()),
	}
	changes := agent.NewChanges(n.Dirs, log)
	changed := changes.Subscribe()
	return []agent.Task{
		{Name: "changes", Run: changes.Run},
		{Name: "pods", Run: pods.Run},
		{Name: "named", Run: pool.Run},
		{Name: "publish", Run: func(ctx context.Context) error {
			return publisher.Run(ctx, changed)
		}},
	}, nil
}

// Reserved returns the sorted reservations in a namespace, as "pod node state".
func (f *Fleet) Reserved(ctx context.Context, namespace string) ([]string, error) {
	var list v1alpha1.IPReservationList
	err := f.clients.IPAM.Get().Namespace(namespace).Resource("ipreservations").
		VersionedParams(&metav1.ListOptions{}, metav1.ParameterCodec).Do(ctx).Into(&list)
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, r := range list.Items {
		lines = append(lines, strings.Join([]string{r.Spec.PodName, r.Spec.NodeName, string(r.Status.State)}, " "))
	}
	slices.Sort(lines)
	return lines, nil
}
