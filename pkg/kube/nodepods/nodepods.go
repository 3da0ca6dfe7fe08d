// Package nodepods knows the pods of one node, as far as their addresses go.
package nodepods

import (
	"context"
	"log/slog"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/leasehold-cni/leasehold/pkg/kube/live"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// Pod is what matters of a pod.
type Pod struct {
	live.Name
	// UID is the one that the runtime passes to plugins. A static pod's is the kubelet's own; the object that stands for
	// it in the API has another.
	UID string
	// ObjectUID is the UID of the API's object.
	ObjectUID types.UID
	// Asked is the annotation that asks for a window, if Asks.
	Asked string
	Asks  bool
	Owner Owner
	// OwnClaim: it has a volume whose claim is named after it.
	OwnClaim bool
	// Expected: the pod has or will have a sandbox of its own network.
	Expected bool
	Ready    bool
}

// Owner is the controller that makes the pod. Its zero value is none.
type Owner struct{ Group, Kind, Name string }

// kubeletHash is the annotation by which the API's object of a static pod names the UID that the kubelet gave it.
const kubeletHash, mirrorMark = "kubernetes.io/config.hash", corev1.MirrorPodAnnotationKey

// Of reads a pod.
func Of(p *corev1.Pod) Pod {
	out := Pod{
		Name: live.Name{Namespace: p.Namespace, Name: p.Name}, UID: string(p.UID), ObjectUID: p.UID,
		Expected: !p.Spec.HostNetwork && p.DeletionTimestamp == nil &&
			p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed,
		Ready: IsReady(p),
	}
	out.OwnClaim = slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return isOwnClaim(v, p.Name) })
	out.Asked, out.Asks = p.Annotations[policy.Annotation]
	if hash := p.Annotations[kubeletHash]; hash != "" && p.Annotations[mirrorMark] != "" {
		out.UID = hash
	}
	if c := metav1.GetControllerOf(p); c != nil {
		group, _, grouped := strings.Cut(c.APIVersion, "/")
		if !grouped {
			group = ""
		}
		out.Owner = Owner{group, c.Kind, c.Name}
	}
	return out
}

// isOwnClaim: controllers name such a claim "<template>-<pod>".
func isOwnClaim(v corev1.Volume, pod string) bool {
	claim := v.PersistentVolumeClaim
	return claim != nil && strings.HasSuffix(claim.ClaimName, "-"+pod)
}

// IsReady tells whether a pod's Ready condition is true.
func IsReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// strip leaves what Of reads.
func strip(p *corev1.Pod) {
	kept := corev1.Pod{
		TypeMeta: p.TypeMeta,
		ObjectMeta: metav1.ObjectMeta{
			Name: p.Name, Namespace: p.Namespace, UID: p.UID, ResourceVersion: p.ResourceVersion,
			DeletionTimestamp: p.DeletionTimestamp, OwnerReferences: p.OwnerReferences,
		},
		Spec:   corev1.PodSpec{NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork},
		Status: corev1.PodStatus{Phase: p.Status.Phase},
	}
	for _, key := range []string{policy.Annotation, kubeletHash, mirrorMark} {
		if v, ok := p.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&kept.ObjectMeta, key, v)
		}
	}
	for _, v := range p.Spec.Volumes {
		if isOwnClaim(v, p.Name) {
			kept.Spec.Volumes = []corev1.Volume{v}
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			kept.Status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	*p = kept
}

// Pods is the live list.
type Pods struct {
	live.Table[*corev1.Pod, Pod]
	core rest.Interface
	node string
	log  *slog.Logger
}

// New returns the list of a node's pods; Run fills it.
func New(core rest.Interface, node string, log *slog.Logger) *Pods {
	return &Pods{Table: live.Table[*corev1.Pod, Pod]{Trim: Of, Strip: strip}, core: core, node: node, log: log}
}

// Run keeps it up to date until ctx is done.
func (p *Pods) Run(ctx context.Context) error {
	lw := cache.NewListWatchFromClient(p.core, "pods", metav1.NamespaceAll, fields.OneTermEqualSelector("spec.nodeName", p.node))
	return p.Watch(ctx, lw, "pods of this node", p.log)
}
