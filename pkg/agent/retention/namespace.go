package retention

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// NamespaceDeleted is the reason in the journal for the end of a hold whose namespace was deleted.
const NamespaceDeleted = "its namespace was deleted"

// OfDeletedNamespace returns those holds of a pod whose namespace was deleted. It reads the
// namespace with the pod's namespace name.
func OfDeletedNamespace(ctx context.Context, core rest.Interface, namespace string, holds []lease.Lease) (
	deleted []lease.Lease, err error) {
	uid, err := readNamespaceUID(ctx, core, namespace)
	if err != nil {
		return nil, err
	}
	isOther := func(l lease.Lease) bool { return !ofDeletedNamespace(l, uid) }
	return slices.DeleteFunc(slices.Clone(holds), isOther), nil
}

// readNamespaceUID reads the UID of a namespace from etcd. It returns "" if the namespace does not
// exist.
func readNamespaceUID(ctx context.Context, core rest.Interface, name string) (string, error) {
	namespace := &corev1.Namespace{}
	err := kube.Get(ctx, core, "namespaces", kube.Name{Name: name}, "", namespace)
	if kube.IsGone(err) {
		return "", nil
	}
	return string(namespace.UID), err
}

// ofDeletedNamespace reports whether the namespace of a lease was deleted. uid is the UID of the
// namespace that has the same name now, or "" if no such namespace exists. If the lease does not
// contain the UID of its namespace, ofDeletedNamespace reports false for any other uid than "".
func ofDeletedNamespace(l lease.Lease, uid string) bool {
	return uid == "" || l.NamespaceUID != "" && l.NamespaceUID != uid
}

// maxOwners is the largest number of owners that namespaces remembers.
const maxOwners = 4096

// namespaces contains the UID of the namespace of each pod. A namespace is deleted only after its
// pods, so that a namespace that is read while the pod exists is the namespace of that pod. It is
// also the namespace of all other pods of the same StatefulSet, because a StatefulSet is deleted
// before its namespace. The UID of the StatefulSet in a pod is not verified, but it is random, and
// known only to those who could read the StatefulSet.
type namespaces struct {
	ofPods   map[types.UID]string // by the UID of the pod
	ofOwners map[owner]string
}

// owner is the UID of a StatefulSet, and the name of its namespace.
type owner struct {
	namespace string
	uid       types.UID
}

// read reads the namespaces of the pods whose leases depend on them (see concerned), except those
// that are known. It removes the entries of pods that no longer exist. After an error it reads no
// other namespace, and returns the error.
func (n *namespaces) read(ctx context.Context, core rest.Interface, pods map[kube.Name]Pod,
	leases map[kube.Name][]lease.Lease) (err error) {
	if n.ofPods == nil || len(n.ofOwners) >= maxOwners {
		n.ofOwners = map[owner]string{}
	}
	former, read := n.ofPods, map[string]string{}
	n.ofPods = map[types.UID]string{}
	for name, p := range pods {
		uid := former[p.ObjectUID]
		if uid == "" && concerned(p, leases[name]) {
			uid = n.ofOwners[owner{p.Namespace, p.Set}]
			if _, isRead := read[name.Namespace]; uid == "" && !isRead && err == nil {
				read[name.Namespace], err = readNamespaceUID(ctx, core, name.Namespace)
			}
			uid = cmp.Or(uid, read[name.Namespace])
		}
		if uid == "" {
			continue
		}
		n.ofPods[p.ObjectUID] = uid
		if p.Set != "" {
			n.ofOwners[owner{p.Namespace, p.Set}] = uid
		}
	}
	return err
}

// concerned reports whether the UID of the pod's namespace is needed: there is a firm hold for the
// pod's name, or a lease of the pod, which requests retention.
func concerned(p Pod, leases []lease.Lease) bool {
	for _, l := range leases {
		if l.Firm || l.UID == p.UID && p.Window > 0 {
			return true
		}
	}
	return false
}
