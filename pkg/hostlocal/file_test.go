package hostlocal

import (
	"testing"

	"github.com/leasehold-cni/leasehold/test/check"
)

func TestWhomAFileNames(t *testing.T) {
	for _, tt := range []struct {
		content, container, ifName string
		want                       bool
	}{
		{"c1\r\neth0", "c1", "eth0", true},
		{"c1\r\neth0", "c1", "net1", false}, // another interface of the same pod
		{"c1\r\neth0", "c10", "eth0", false},
		{"c10\r\neth0", "c1", "eth0", false},
		{"c1", "c1", "net1", true}, // before v0.8.0 host-local did not write the interface
		{"c1\r\n", "c1", "eth0", false},
		{"", "", "", false},
		{"\r\neth0", "", "eth0", false},
	} {
		check.Equal(t, Names(tt.content, tt.container, tt.ifName), tt.want, tt.content, tt.container, tt.ifName)
	}
}
