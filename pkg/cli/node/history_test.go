package node

import (
	"bytes"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestHistoryStatesItsBeginning checks that a history says so if the journal once had earlier
// entries, also if none of the entries that are left is about the subject.
func TestHistoryStatesItsBeginning(t *testing.T) {
	for name, c := range map[string]struct {
		entries int
		event   store.Event // of the first entry
		want    string
	}{
		"complete":  {10, store.EventBound, ""},
		"trimmed":   {store.JournalSize + 100, store.EventBound, "2020-01-01T00:01:04Z   JournalBegins   -"},
		"recovered": {10, store.EventRecovered, "2020-01-01T00:00:00Z   JournalBegins   -"},
	} {
		dir := t.TempDir()
		dirs := store.Dirs{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}
		err := store.New(dirs).Update(t.Context(), func(tx *store.Tx) error {
			for i := range c.entries {
				n := store.Entry{Time: time.Date(2020, 1, 1, 0, 0, i, 0, time.UTC), Event: store.EventBound,
					Address: netip.MustParseAddr("10.0.0.2")}
				if i == 0 {
					n.Event = c.event
				}
				if err := tx.Log(n); err != nil {
					return err
				}
			}
			return nil
		})
		must.Succeed(t, err)
		var stdout, stderr bytes.Buffer
		code := Run(t.Context(), cli.Env{Stdout: &stdout, Stderr: &stderr}, dirs,
			host.New("/proc", host.DefaultBootIDFile), []string{"history", "10.0.0.9"})
		check.Equal(t, code, 0, name, &stderr)
		check.Contains(t, stdout.String(), c.want, name)
		check.Equal(t, strings.Count(stdout.String(), "\n") == 1, c.want == "", name, &stdout)
	}
}
