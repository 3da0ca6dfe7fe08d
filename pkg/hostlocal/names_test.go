package hostlocal

import (
	"strings"
	"testing"
)

// The longest names that Kubernetes and CNI have, and those that are longer.
func TestTheLengthsOfNames(t *testing.T) {
	a := func(n int) string { return strings.Repeat("a", n) }
	for _, tt := range []struct {
		what          string
		longest, over bool
	}{
		{"a namespace", IsPod(a(63), "p"), IsPod(a(64), "p")},
		{"a pod", IsPod("ns", a(253)), IsPod("ns", a(254))},
		{"a UID", IsUID(a(128)), IsUID(a(129))},
		{"a container", IsContainerID(a(255)), IsContainerID(a(256))},
		{"a network", IsNetwork(a(255)), IsNetwork(a(256))},
		{"an interface", IsIfName(a(15)), IsIfName(a(16))},
	} {
		if !tt.longest || tt.over {
			t.Errorf("%s: the longest is one: %v, a longer one: %v", tt.what, tt.longest, tt.over)
		}
	}
}
