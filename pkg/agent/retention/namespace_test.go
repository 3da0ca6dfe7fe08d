package retention

import (
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
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
		if got := IsOfDeletedNamespace(lease.Lease{NamespaceUID: c.lease}, c.now); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
}
