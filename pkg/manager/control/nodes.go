package control

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/leasehold-cni/leasehold/pkg/kube"
)

// Nodes are the nodes of the cluster. They have only the fields that decide whether a pod may run
// there.
type Nodes = kube.Informer[*corev1.Node]

// NewNodes returns Nodes, of which none is known yet.
func NewNodes() *Nodes { return kube.NewInformer(TrimNode, nil) }

// WatchNodes adds the watch of the nodes to a manager that has not started.
func WatchNodes(mgr manager.Manager) (*Nodes, error) {
	nodes := NewNodes()
	return nodes, Watch(mgr, nodes, "nodes", Objects{Kind: corev1.SchemeGroupVersion.WithKind("Node"),
		Resource: "nodes"})
}

// What is kept of the labels and taints of a node, at most. The API server limits neither. Nodes
// have tens of labels, some hundreds.
const (
	maxLabelBytes = 32 << 10 // with labelBytes for each
	labelBytes    = 64
	maxTaints     = 32
)

// TrimNode returns a node as Nodes have it.
func TrimNode(n *corev1.Node) *corev1.Node {
	trimmed := &corev1.Node{ObjectMeta: Identity(&n.ObjectMeta), Spec: corev1.NodeSpec{
		Taints: slices.Clone(n.Spec.Taints[:min(len(n.Spec.Taints), maxTaints)]), Unschedulable: n.Spec.Unschedulable}}
	trimmed.Labels = limitLabels(n.Labels)
	if c := Ready(n); c.Type != "" {
		trimmed.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status,
			LastTransitionTime: c.LastTransitionTime}}
	}
	return trimmed
}

// Ready returns the condition Ready of a node, the zero value if it has none yet.
func Ready(n *corev1.Node) (ready corev1.NodeCondition) {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			ready = c
		}
	}
	return ready
}

// limitLabels returns the labels of a node that are kept: those of Kubernetes first, which say the
// hostname and the zone.
func limitLabels(all map[string]string) map[string]string {
	kept, left := map[string]string{}, maxLabelBytes
	for _, areFirst := range []bool{true, false} {
		for _, key := range slices.Sorted(maps.Keys(all)) {
			if strings.Contains(key, "kubernetes.io/") != areFirst {
				continue
			}
			if left -= labelBytes + len(key) + len(all[key]); left >= 0 {
				kept[Intern(key)] = all[key]
			}
		}
	}
	return kept
}
