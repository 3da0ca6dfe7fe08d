package retention

import (
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
)

// A lease without the UID of its namespace is of the one that exists.
func TestOfDeletedNamespace(t *testing.T) {
	for _, c := range []struct {
		name, lease, now string // the UIDs of the namespace
		want             bool
	}{
		{"the same", "ns1", "ns1", false},
		{"created again", "ns1", "ns2", true},
		{"deleted", "ns1", "", true},
		{"the lease does not say", "", "ns2", false},
		{"the lease does not say, and there is none", "", "", true},
	} {
		check.Equal(t, IsOfDeletedNamespace(lease.Lease{NamespaceUID: c.lease}, c.now), c.want, c.name)
	}
}
