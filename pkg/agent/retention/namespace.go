package retention

import (
	"context"

	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// NamespaceDeleted is the reason in the journal for the end of a hold whose namespace was deleted.
const NamespaceDeleted = "its namespace was deleted"

// ReadNamespaceUID reads the UID of a namespace from etcd. It returns "" if the namespace does not
// exist.
func ReadNamespaceUID(ctx context.Context, core rest.Interface, name string) (string, error) {
	uid, err := kube.GetUID(ctx, core, "namespaces", kube.Name{Name: name}, "")
	if kube.IsGone(err) {
		return "", nil
	}
	return uid, err
}

// IsOfDeletedNamespace reports whether the namespace of a lease was deleted. uid is the UID of the
// namespace that has the same name now, or "" if no such namespace exists. If the lease does not
// contain the UID of its namespace, IsOfDeletedNamespace reports false for any other uid than "".
func IsOfDeletedNamespace(l lease.Lease, uid string) bool {
	return uid == "" || l.NamespaceUID != "" && l.NamespaceUID != uid
}
