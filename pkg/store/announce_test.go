package store

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

func queue(t *testing.T, s *Store) []string {
	t.Helper()
	files, err := os.ReadDir(s.AnnounceDir())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	return names
}

// An attachment is queued once, and removed when it ends.
func TestAnnounce(t *testing.T) {
	s := New(Dirs{State: t.TempDir(), Run: filepath.Join(t.TempDir(), "run")})
	who := lease.Holder{ContainerID: "c1", IfName: "eth0"}
	s.Unannounce(who) // without a queue
	for range 2 {
		if err := s.Announce(who); err != nil {
			t.Fatal(err)
		}
	}
	if got := queue(t, s); len(got) != 1 || got[0] != "c1@eth0" {
		t.Errorf("the queue has %q, want one entry", got)
	}
	s.Unannounce(lease.Holder{ContainerID: "c1", IfName: "eth1"})
	if got := queue(t, s); len(got) != 1 {
		t.Errorf("the end of another attachment changed the queue: %q", got)
	}
	s.Unannounce(who)
	if got := queue(t, s); len(got) != 0 {
		t.Errorf("the queue has %q, want no entries", got)
	}
}
