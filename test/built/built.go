// Package built builds programs of leasehold for the tests of packages that examine binaries.
package built

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/leasehold-cni/leasehold/test/must"
)

// Plugin returns the content of leasehold's plugin, built with the flags of a release. It is built
// once in a process.
func Plugin(t testing.TB) []byte {
	t.Helper()
	content, err := plugin()
	must.Succeed(t, err)
	return content
}

var plugin = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "leasehold-built")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "leasehold")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=test", "-o", path,
		"github.com/leasehold-cni/leasehold/plugins/ipam/leasehold")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("go build: %w: %s", err, text)
	}
	return os.ReadFile(path)
})
