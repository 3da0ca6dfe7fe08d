package windows

import (
	"cmp"
	"context"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// maxOwners is the largest number of owners that namespaces remembers.
const maxOwners = 4096

// namespaces contains the UIDs of the pods' namespaces. A namespace is deleted only after its pods,
// so that a namespace that is read while the pod exists is the namespace of that pod. It is also
// the namespace of all other pods of the same StatefulSet, because a StatefulSet is deleted before
// its namespace. The UID of the StatefulSet in a pod is not verified, but it is random, and known
// only to those who could read the StatefulSet.
type namespaces map[owner]string

// owner is the UID of a StatefulSet and the name of its namespace, or only the UID of a pod that no
// StatefulSet controls: users may give a pod any controller, but no UID.
type owner struct {
	namespace string
	uid       types.UID
}

func ownerOf(p retention.Pod) owner {
	if p.Set == "" {
		return owner{"", p.ObjectUID}
	}
	return owner{p.Namespace, p.Set}
}

// read reads the namespaces of the pods whose leases depend on them (see concerned), except those
// that are known. It returns the first error.
func (n namespaces) read(ctx context.Context, core rest.Interface, pods map[kube.Name]retention.Pod,
	leases map[kube.Name][]lease.Lease) error {
	read := map[string]string{}
	var problem error
	var outage kube.Outage
	for name, p := range pods {
		if n[ownerOf(p)] != "" || !concerned(p, leases[name]) {
			continue
		}
		if _, isRead := read[p.Namespace]; !isRead {
			uid, err := retention.ReadNamespaceUID(ctx, core, p.Namespace)
			if outage.Observe(err) {
				return err
			}
			read[p.Namespace], problem = uid, cmp.Or(problem, err) // "" if it could not be read
		}
		n[ownerOf(p)] = read[p.Namespace]
	}
	return problem
}

// concerned reports whether the UID of the pod's namespace is needed: there is a hold for the
// pod's name, or a lease of the pod, which requests retention.
func concerned(p retention.Pod, leases []lease.Lease) bool {
	for _, l := range leases {
		if l.IsHold || l.UID == p.UID && p.Window > 0 {
			return true
		}
	}
	return false
}
