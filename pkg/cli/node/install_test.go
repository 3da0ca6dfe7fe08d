package node

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestFileChangedWhileAsked has a network plugin write its configuration while the user is asked.
func TestFileChangedWhileAsked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "10-net.conflist")
	conf := []byte(`{"cniVersion":"1.0.0","name":"net","plugins":[{"type":"bridge","ipam":{"type":"host-local"}}]}`)
	later := bytes.Replace(conf, []byte("net"), []byte("other"), 1)
	must.Succeed(t, os.WriteFile(path, conf, 0o600))
	a := &app{App: cli.New(cli.Env{Stdout: io.Discard, Stderr: io.Discard})}
	err := a.changeFile(path, cniconf.WithLeasehold, func() bool {
		must.Succeed(t, os.WriteFile(path, later, 0o600))
		return true
	})
	if now, _ := os.ReadFile(path); err == nil || !bytes.Equal(now, later) {
		t.Errorf("%v, the file has %s; want an error, and %s", err, now, later)
	}
}
