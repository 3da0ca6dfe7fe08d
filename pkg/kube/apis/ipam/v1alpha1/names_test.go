package v1alpha1

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/leasehold-cni/leasehold/test/check"
)

func TestObjectName(t *testing.T) {
	const uid = "5f1c9a02-6f0b-4d0e-9c4b-0d6b1f2a7e11"
	for _, c := range []struct{ pod, want string }{
		{"db-0", "db-0-5f1c9a02"},
		{strings.Repeat("a", 244), strings.Repeat("a", 244) + "-5f1c9a02"},
		{strings.Repeat("a", 226) + "." + strings.Repeat("b", 20),
			strings.Repeat("a", 226) + "-" + Hash(strings.Repeat("a", 226)+"."+strings.Repeat("b", 20)) + "-5f1c9a02"},
	} {
		got := ObjectName(c.pod, uid)
		check.Equal(t, got, c.want, c.pod)
		check.Empty(t, validation.IsDNS1123Subdomain(got), got)
		check.Empty(t, validation.IsValidLabelValue(Hash(c.pod)), c.pod)
	}
}
