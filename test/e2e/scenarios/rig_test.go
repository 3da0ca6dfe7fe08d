package scenarios

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// label marks the namespaces of scenarios, so that a later run can remove what an earlier one left.
const label = "leasehold.dev/e2e"

// A rig is what all scenarios of a run share: the cluster, its clients, and the watch for overlaps.
type rig struct {
	Cluster   *cluster.Cluster
	Client    *kubernetes.Clientset
	Dynamic   dynamic.Interface
	watch     inspect.OverlapWatch
	publisher *publisher
	release   func() error
	unmark    func() error

	mu       sync.Mutex
	overlaps int // that overlap has returned
}

// start acquires the cluster, removes what an earlier run left, and starts the watch for addresses
// in two pods.
func (r *rig) start(ctx context.Context, repo, dir string, o cluster.Options) (err error) {
	if r.Cluster, r.release, err = acquire(ctx, repo, dir, o); err != nil {
		r.release = nil // a cluster that did not start is down
		return err
	}
	if r.Client, r.Dynamic, err = r.Cluster.Clients(); err != nil {
		return err
	}
	if r.publisher, err = newPublisher(r.Cluster); err != nil {
		return err
	}
	if err := removeLeftovers(ctx, r.Client); err != nil {
		return fmt.Errorf("removing what an earlier run left: %w", err)
	}
	// Until the last scenario has cleaned up, the nodes may be in any state.
	if r.unmark, err = r.Cluster.MarkInUse(); err != nil {
		return err
	}
	if hours, _ := soakDuration(); hours > 0 {
		r.watch.History = inspect.NewAddressHistory(time.Now)
	}
	r.watch.Start(ctx, func() []string {
		var roots []string
		for _, name := range r.Cluster.NodeNames() {
			if r.Cluster.PID(name) != 0 {
				roots = append(roots, r.Cluster.Root(name))
			}
		}
		return roots
	})
	return nil
}

// close releases the cluster. clean says that all scenarios have restored what they changed.
func (r *rig) close(clean bool) error {
	if r.release == nil {
		return nil
	}
	var err error
	if clean && r.unmark != nil {
		err = r.unmark()
	}
	return errors.Join(err, r.release())
}

// prepare gives a scenario a new namespace and checks the stores of its nodes when it ends.
func (t *Test) prepare() {
	t.nodes = t.scenario.nodeNames(t.Cluster.NodeNames())
	// A new name, because addresses that an earlier run left held are for other pods.
	var random [3]byte
	rand.Read(random[:])
	ns := fmt.Sprintf("%s-%x", t.scenario.name, random)
	t.NS = ns
	t.namespace(ns)
	t.Cleanup(t.CheckStores)
}

// namespace creates a namespace, which is removed with the scenario.
func (t *Test) namespace(name string) {
	_, err := t.Client.CoreV1().Namespaces().Create(t.Ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{label: t.scenario.name}}}, metav1.CreateOptions{})
	t.Must(err)
	t.Cleanup(func() { t.Must(t.Client.CoreV1().Namespaces().Delete(t.Ctx, name, metav1.DeleteOptions{})) })
	// No pod is admitted before the service account exists. The controller manager may have been
	// restarted.
	t.Eventually("a service account in "+name, func() error {
		_, err := t.Client.CoreV1().ServiceAccounts(name).Get(t.Ctx, "default", metav1.GetOptions{})
		return err
	})
}

// overlap describes the addresses that were seen in two pods since it was called last.
func (r *rig) overlap() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	found, _ := r.watch.Found()
	fresh := slices.Clone(found[r.overlaps:])
	r.overlaps = len(found)
	return strings.Join(fresh, "; ")
}

// removeLeftovers removes the namespaces of earlier scenarios with everything in them.
func removeLeftovers(ctx context.Context, client *kubernetes.Clientset) error {
	now := int64(0)
	list, err := client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{LabelSelector: label})
	if err != nil {
		return err
	}
	for _, ns := range list.Items {
		if ns.DeletionTimestamp == nil {
			if err := client.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{}); err != nil {
				return err
			}
		}
		// Pods of a node that was removed would keep the namespace from ending.
		err := client.CoreV1().Pods(ns.Name).DeleteCollection(ctx,
			metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}
