package kube

import (
	"testing"

	"github.com/leasehold-cni/leasehold/test/check"
)

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		text             string
		limit            int
		wantCut, wantFit string
	}{
		{"", 0, "", ""},
		{"abc", 3, "abc", "abc"},
		{"abcd", 3, "abc", ""},
		{"aä", 2, "a", ""}, // ä has two bytes
		{"ä", 1, "", ""},
	} {
		check.Equal(t, Cut(tt.text, tt.limit), tt.wantCut, "Cut", tt.text, tt.limit)
		check.Equal(t, Short(tt.text, tt.limit), tt.wantFit, "Short", tt.text, tt.limit)
	}
}
