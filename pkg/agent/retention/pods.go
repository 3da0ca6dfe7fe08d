// Package retention watches the node's pods and the limits, and ends retention, for the agent's
// tasks.
package retention

import (
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
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
	// Window and ReserveAs are what the pod's leases should have. Window is 0 if the pod does not
	// request retention, or if it has no reservation name and no other pod will have its name. If
	// an annotation is invalid, Invalid is the reason, and what is stored must not be changed.
	Window    lease.Window
	ReserveAs string
	Invalid   string
	// Owner is the StatefulSet that leases store if the pod requests its address forever, "" if it
	// does not, or if it has a reservation name or another controller (see controllingSet).
	Owner string
	// Set is the UID of the StatefulSet that controls the pod, "" if none does.
	Set types.UID
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

// Annotations of a mirror pod, the object of a static pod in the API. kubeletHash is the UID that
// the kubelet gave the static pod.
const (
	kubeletHash = "kubernetes.io/config.hash"
	mirrorPod   = corev1.MirrorPodAnnotationKey
)

// PodOf returns the Pod for a pod of the API.
func PodOf(p *corev1.Pod) Pod {
	out := Pod{
		Name: kube.Name{Namespace: p.Namespace, Name: p.Name}, UID: string(p.UID), ObjectUID: p.UID,
		Expected: !p.Spec.HostNetwork && p.DeletionTimestamp == nil &&
			p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed,
		Ready:    kube.IsReady(p),
		Deleting: p.DeletionTimestamp != nil,
	}
	if p.Status.StartTime != nil {
		out.Started = p.Status.StartTime.Time
	}
	for _, ip := range p.Status.PodIPs {
		out.IPs = append(out.IPs, ip.IP)
	}
	request, err := policy.RequestFrom(p.Annotations)
	var owner string
	if owner, out.Set = controllingSet(p); err != nil {
		out.Invalid = err.Error()
	} else if request.ReserveAs != "" || keepsName(p) {
		out.Window, out.ReserveAs = request.Window, request.ReserveAs
	}
	if out.Window == lease.Forever && out.ReserveAs == "" {
		out.Owner = owner
	}
	hash := kube.Short(p.Annotations[kubeletHash], kube.MaxUID)
	if hash != "" && p.Annotations[mirrorPod] != "" {
		out.UID = hash
	}
	return out
}

// cloneSet is the controller that recreates a pod under the same name if the pod has its own volume
// claim: the claim outlives a pod that is deleted or evicted, and the pod's name is derived from
// the instance id of the claim.
var cloneSet = schema.GroupKind{Group: "apps.kruise.io", Kind: "CloneSet"}

// keepsName reports whether a pod of the same name might be created after this pod's deletion. A
// generated name is never used again; an address held for that name would be unusable for the whole
// window. The suffix of a StatefulSet's pod may look generated; the pod-name label that the
// StatefulSet controller sets shows that it is an ordinal. If nothing shows how the pod was named,
// keepsName reports true.
func keepsName(p *corev1.Pod) bool {
	kind, _ := kube.ControllerOf(p)
	hasClaim := slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return isOwnClaim(v, p.Name) })
	return kind == cloneSet && hasClaim || p.Labels[appsv1.StatefulSetPodNameLabel] == p.Name ||
		!isGenerated(p.GenerateName, p.Name)
}

// The API server appends suffixLength characters of suffixCharacters to the first maxPrefix bytes
// of metadata.generateName (docs/facts.md, "Generated names never return").
const (
	suffixLength     = 5
	suffixCharacters = "bcdfghjklmnpqrstvwxz2456789"
	maxPrefix        = 63 - suffixLength
)

// isGenerated reports whether the API server generated a name from a prefix. It reports true if the
// name is the prefix and a suffix that is either not a number, or a number that the API server
// could have generated as a random suffix.
func isGenerated(prefix, name string) bool {
	suffix, hasPrefix := strings.CutPrefix(name, prefix[:min(len(prefix), maxPrefix)])
	if prefix == "" || !hasPrefix {
		return false
	}
	_, isNumber := kube.ParseOrdinal(suffix)
	return !isNumber || len(suffix) == suffixLength && strings.Trim(suffix, suffixCharacters) == ""
}

// isOwnClaim reports whether a volume's claim was created for the pod, as the claims of volume
// claim templates are. The name of such a claim is "<template>-<pod>".
func isOwnClaim(v corev1.Volume, pod string) bool {
	claim := v.PersistentVolumeClaim
	return claim != nil && strings.HasSuffix(claim.ClaimName, "-"+pod)
}

// Pods are the pods of a node.
type Pods = kube.NodeInformer[Pod]

// NewPods returns the Pods of a node. It has no views until Run has received a list.
func NewPods(core rest.Interface, node string) *Pods {
	i := kube.NewInformer(PodOf, nil)
	return &Pods{Informer: i, What: "pods of this node", Period: 3 * time.Minute,
		ListWatch: i.ListWatch(core, "pods", metav1.NamespaceAll, "", "spec.nodeName="+node)}
}
