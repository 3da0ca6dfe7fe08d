package cli

import (
	"bytes"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
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
		if err != nil {
			t.Fatal(err)
		}
		var stdout, stderr bytes.Buffer
		code := Run(t.Context(), Env{Stdout: &stdout, Stderr: &stderr, Dirs: dirs,
			Host: host.New("/proc", host.DefaultBootIDFile)}, []string{"history", "10.0.0.9"})
		if code != exitOK || !strings.Contains(stdout.String(), c.want) ||
			(c.want == "") != (strings.Count(stdout.String(), "\n") == 1) {
			t.Errorf("%s: %d, %q, %q; want %q", name, code, &stdout, &stderr, c.want)
		}
	}
}

// TestRun runs command lines on a node with one lease, in whose names there are terminal sequences.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	now := lease.Instant{Wall: time.Now(), Boot: time.Hour, BootID: "boot-1"}
	l, err := lease.Apply(lease.Lease{}, lease.Bind{
		ID: "00112233445566aa", Pool: lease.Pool{DataDir: dir, Network: "cbr0"},
		Address: netip.MustParseAddr("10.0.0.2"), Set: "s", Namespace: "db", Name: "db-0\x1b[2J", UID: "u1",
		Soft: time.Minute, Holder: lease.Holder{ContainerID: "c1", IfName: "eth0", BootID: "boot-1"},
	}, now)
	if err != nil {
		t.Fatal(err)
	}
	dirs := store.Dirs{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}
	if err := store.New(dirs).Update(t.Context(), func(tx *store.Tx) error {
		return tx.Put(l.Pool, l.Address, l)
	}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"--version", exitOK, "v1.2.3", ""},
		{"list", exitOK, `db-0\x1b[2J`, ""},
		{"no\x1b[2J", ExitUsage, "", `unknown command`},
		{"list --no\x1b[2J", ExitUsage, "", `leasectl: unknown flag: --no\x1b[2J` + "\nTry 'leasectl list --help'.\n"},
		{"list -o xml", ExitUsage, "", `leasectl: invalid --output "xml"`},
		{"list --host-root /", exitOK, `db-0`, ""},
		{"list --host-root /host", exitProblems, "", `leasectl: --host-root "/host" is invalid; want /`},
		{"list db-0", ExitUsage, "", "Try 'leasectl list --help'.\n"},
		{"release 10.0.0.9", exitProblems, "", "leasectl: "},
	} {
		var stdout, stderr bytes.Buffer
		code := Run(t.Context(), Env{Stdout: &stdout, Stderr: &stderr, Dirs: dirs, Version: "v1.2.3",
			Host: host.New("/proc", host.DefaultBootIDFile), Clock: func() lease.Instant { return now }},
			strings.Fields(c.args))
		if code != c.code || !strings.Contains(stdout.String(), c.stdout) ||
			!strings.Contains(stderr.String(), c.stderr) || (c.stderr == "") != (stderr.Len() == 0) ||
			strings.Contains(stdout.String()+stderr.String(), "\x1b") {
			t.Errorf("leasectl %q: %d, want %d\nstdout: %q, want %q\nstderr: %q, want %q", c.args, code, c.code,
				&stdout, c.stdout, &stderr, c.stderr)
		}
	}
}
