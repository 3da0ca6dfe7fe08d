package scenarios

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// onMultus follows the page for Multus, with its plain plugin. Multus passes no annotations on, so
// that the windows come from the agent.
func onMultus(t *Test) {
	n := t.Node(3)
	dir, err := t.Cluster.BuildMultus(t.Ctx)
	t.Must(err)
	t.Must(n.InstallPlugin(filepath.Join(dir, "multus")))
	t.applyCRDs("network-attachment-definitions.yaml")
	t.Networks(n, n.DefaultNetwork())
	t.Must(n.SetConfiguration(t.Ctx, "multus", fmt.Sprintf(`{"cniVersion": "0.3.1", "name": "multus", "type": "multus",
		"kubeconfig": %q, "clusterNetwork": %q}`, t.Cluster.Kubeconfig(), n.DefaultNetwork().Path(0))))

	set, before := t.set("lan", 2), map[string]string(nil)
	set.Node = n
	t.follow(page{"docs/recipes/multus.md", "", []string{"<node>", n.Name}, set, func(command string, _ time.Time) {
		if !strings.HasPrefix(command, "kubectl rollout status") {
			return
		}
		now := t.interfaces(set)
		for pod, lines := range now {
			if !strings.Contains(lines, "eth0") || !strings.Contains(lines, "net1") ||
				before != nil && before[pod] != lines {
				t.Errorf("%s has %s, and before %s", pod, lines, before[pod])
			}
		}
		if before == nil {
			t.noLease(n, "without a window", func(l cli.Row) bool { return l.Window == "" })
			t.LeasesAre(n, "Bound", 4)
		}
		before = now
	}})
	t.Step("lan-0 has %s; both pods are deleted, and another pod takes an address", before["lan-0"])
	set.Scale(0)
	t.otherPods("others", n, 1, nil)
	set.Scale(2)
	if after := t.interfaces(set); !maps.Equal(before, after) {
		t.Fatalf("the pods had %s and have %s", before, after)
	}
}

// interfaces returns the interfaces in the pods' network namespaces, with their addresses.
func (t *Test) interfaces(set *Set) map[string]string {
	found := map[string]string{}
	for name, pod := range set.Ready() {
		found[name] = t.interfacesOf(set.Node, pod)
	}
	return found
}

// interfacesOf returns the interfaces of a pod, sorted by name, with their addresses.
func (t *Test) interfacesOf(n *cluster.Node, pod corev1.Pod) string {
	byName, err := inspect.Addresses(t.Sandbox(n, pod).NetNS)
	t.Must(err)
	return fmt.Sprint(byName)
}
