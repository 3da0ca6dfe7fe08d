package retention

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/agent/podcache"
	"github.com/leasehold-cni/leasehold/pkg/kube/informer"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// NamespaceDeleted is the reason for which a hold ends with its namespace.
const NamespaceDeleted = "its namespace was deleted"

// NamespaceUID reads the UID of a namespace, "" if the namespace does not exist. With the resource
// version "0" the answer may be out of date, with "" it is not.
func NamespaceUID(ctx context.Context, core rest.Interface, name, resourceVersion string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, informer.RequestTimeout)
	defer cancel()
	namespace := &corev1.Namespace{}
	options := metav1.GetOptions{ResourceVersion: resourceVersion}
	err := core.Get().Resource("namespaces").Name(name).VersionedParams(&options, metav1.ParameterCodec).
		Do(ctx).Into(namespace)
	if apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return "", nil
	}
	return string(namespace.UID), err
}

// OfDeletedNamespace reports whether a lease is of a namespace that does not exist any more. uid is
// the UID of the namespace that has its name now, "" if there is none.
func OfDeletedNamespace(l lease.Lease, uid string) bool {
	return uid == "" || l.NamespaceUID != "" && l.NamespaceUID != uid
}

// namespaces has the UIDs of the namespaces of pods. A namespace is not removed before its pods, so
// that the one that is read while a pod exists is the pod's.
type namespaces map[types.UID]string // by the UID of the pod

// read reads the namespaces of the pods that have a window, or a lease that is held, and forgets
// those of all pods that are gone. After an error it reads no other.
func (n namespaces) read(ctx context.Context, core rest.Interface, pods map[informer.Name]podcache.Pod,
	leases map[informer.Name][]lease.Lease) (err error) {
	here, read := map[types.UID]bool{}, map[string]string{}
	for name, p := range pods {
		here[p.ObjectUID] = true
		if _, known := n[p.ObjectUID]; known || !concerned(p, leases[name]) {
			continue
		}
		uid, known := read[name.Namespace]
		if !known && err == nil {
			uid, err = NamespaceUID(ctx, core, name.Namespace, "")
			read[name.Namespace] = uid
		}
		if uid != "" {
			n[p.ObjectUID] = uid
		}
	}
	for pod := range n {
		if !here[pod] {
			delete(n, pod)
		}
	}
	return err
}

func concerned(p podcache.Pod, leases []lease.Lease) bool {
	for _, l := range leases {
		if l.Firm || l.UID == p.UID && p.HasAnnotation {
			return true
		}
	}
	return false
}
