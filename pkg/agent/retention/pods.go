package retention

import (
	"context"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// Pod contains the fields of a pod that concern its addresses.
type Pod struct {
	kube.Name
	// UID is the UID that the runtime passes to plugins. For a static pod, it is the UID that the
	// kubelet generated, and differs from ObjectUID, the UID of the pod's mirror pod.
	UID string
	// ObjectUID is the UID of the object in the API.
	ObjectUID types.UID
	// Request is the retention that the pod's annotations request. It is the zero value if they are
	// invalid, and Invalid is the reason then, otherwise "".
	Request  policy.Request
	Invalid  string
	Owner    Owner
	OwnerUID types.UID // of Owner
	// GenerateName is the prefix from which the API server may have generated the pod's name.
	GenerateName string
	// SetPodName is the value of the label statefulset.kubernetes.io/pod-name, in which a
	// StatefulSet stores the name of the pod. It is "" if the pod has no such label.
	SetPodName string
	// OwnClaim is true if the pod has a volume whose claim is named after the pod.
	OwnClaim bool
	// Expected is true if the pod has, or will have, a sandbox with its own network namespace.
	Expected bool
	Ready    bool
	Deleting bool // the pod is being deleted
	// Started is when the kubelet first processed the pod, in whole seconds. It is before the start
	// of the pod's first sandbox, and zero until the kubelet has set it.
	Started time.Time
	// IPs are the addresses of the pod's sandbox. The slice is empty until the kubelet has reported
	// them.
	IPs []string
}

// Owner is the controller of a pod. The zero value means that the pod has no controller.
type Owner struct{ Group, Kind, Name string }

// maxKind is how many bytes a kind has, at most.
const maxKind = 63

// Annotations of a mirror pod, the object of a static pod in the API. kubeletHash is the UID that
// the kubelet gave the static pod.
const (
	kubeletHash = "kubernetes.io/config.hash"
	mirrorPod   = corev1.MirrorPodAnnotationKey
)

// podOf returns the Pod for a pod of the API.
func podOf(p *corev1.Pod) Pod {
	out := Pod{
		Name: kube.Name{Namespace: p.Namespace, Name: p.Name}, UID: string(p.UID), ObjectUID: p.UID,
		Expected: !p.Spec.HostNetwork && p.DeletionTimestamp == nil &&
			p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed,
		Ready:        kube.IsReady(p),
		Deleting:     p.DeletionTimestamp != nil,
		GenerateName: p.GenerateName, SetPodName: p.Labels[appsv1.StatefulSetPodNameLabel],
	}
	if p.Status.StartTime != nil {
		out.Started = p.Status.StartTime.Time
	}
	for _, ip := range p.Status.PodIPs {
		out.IPs = append(out.IPs, ip.IP)
	}
	out.OwnClaim = slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return isOwnClaim(v, p.Name) })
	var err error
	if out.Request, err = policy.RequestFrom(p.Annotations); err != nil {
		out.Invalid = err.Error()
	}
	out.Request.Expected = "" // only the plugin needs it
	hash := kube.Short(p.Annotations[kubeletHash], kube.MaxUID)
	if hash != "" && p.Annotations[mirrorPod] != "" {
		out.UID = hash
	}
	out.Owner, out.OwnerUID = controllerOf(p)
	return out
}

// controllerOf returns the controller of a pod and its UID. The API server does not limit the texts
// of an owner reference, so that controllerOf ignores one that is longer than any object's.
func controllerOf(p *corev1.Pod) (Owner, types.UID) {
	c := metav1.GetControllerOfNoCopy(p)
	if c == nil || len(c.Kind) > maxKind || len(c.Name) > kube.MaxName || len(c.UID) > kube.MaxUID {
		return Owner{}, ""
	}
	group, _, hasGroup := strings.Cut(c.APIVersion, "/")
	if !hasGroup {
		group = ""
	}
	return Owner{strings.Clone(kube.Short(group, kube.MaxName)), c.Kind, c.Name}, c.UID
}

// isOwnClaim reports whether a volume's claim was created for the pod, as the claims of volume
// claim templates are. The name of such a claim is "<template>-<pod>".
func isOwnClaim(v corev1.Volume, pod string) bool {
	claim := v.PersistentVolumeClaim
	return claim != nil && strings.HasSuffix(claim.ClaimName, "-"+pod)
}

// watchPeriod is the time over which the agents watch their pods again after an outage of the API
// server (docs/decisions.md, "Cost that does not grow with the nodes").
const watchPeriod = 3 * time.Minute

// Pods is an informer of the pods of a node.
type Pods struct {
	*kube.Informer[Pod]
	core rest.Interface
	node string
}

// NewPods returns the Pods of a node. It has no views until Run has received a list.
func NewPods(core rest.Interface, node string) *Pods {
	return &Pods{kube.NewInformer(podOf, nil), core, node}
}

// Run watches the pods until ctx is done. It returns ctx.Err().
func (p *Pods) Run(ctx context.Context) error {
	lw := cache.NewListWatchFromClient(p.core, "pods", metav1.NamespaceAll,
		fields.OneTermEqualSelector("spec.nodeName", p.node))
	return p.Informer.RunSpread(ctx, lw, "pods of this node", watchPeriod)
}
