package cli

import (
	"testing"

	"github.com/leasehold-cni/leasehold/test/check"
)

func TestCommandQuotes(t *testing.T) {
	got := ShellCommand("kubectl", "patch", "-p", `{"a":"it's"}`, "--dir=/a b")
	check.Equal(t, got, `kubectl patch -p '{"a":"it'\''s"}' '--dir=/a b'`)
}
