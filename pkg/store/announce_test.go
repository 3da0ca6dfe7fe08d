package store

import (
	"fmt"
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

// A note is there once, whatever is repeated, and goes with its attachment.
func TestAnnounce(t *testing.T) {
	s := New(Dirs{State: t.TempDir(), Run: filepath.Join(t.TempDir(), "run")})
	who := lease.Holder{ContainerID: "c1", IfName: "eth0"}
	s.Unannounce(who) // nothing is there yet
	for range 2 {
		if err := s.Announce(who); err != nil {
			t.Fatal(err)
		}
	}
	if got := queue(t, s); len(got) != 1 || got[0] != "c1@eth0" {
		t.Errorf("the queue has %q, want the one note", got)
	}
	s.Unannounce(lease.Holder{ContainerID: "c1", IfName: "eth1"})
	if got := queue(t, s); len(got) != 1 {
		t.Errorf("another attachment's end took the note away: %q", got)
	}
	s.Unannounce(who)
	if got := queue(t, s); len(got) != 0 {
		t.Errorf("after its end the queue has %q", got)
	}
}

// On a node where nobody reads the queue it does not grow for ever.
func TestAnnounceIsBounded(t *testing.T) {
	s := New(Dirs{State: t.TempDir(), Run: t.TempDir()})
	note := func(i int) lease.Holder { return lease.Holder{ContainerID: fmt.Sprint("c", i), IfName: "eth0"} }
	if err := s.Announce(note(0)); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < maxAnnouncements; i++ {
		if err := os.WriteFile(filepath.Join(s.AnnounceDir(), note(i).Name()), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Announce(note(maxAnnouncements)); err != nil {
		t.Error(err)
	}
	if n := len(queue(t, s)); n != maxAnnouncements {
		t.Errorf("the queue has %d notes, want %d", n, maxAnnouncements)
	}
}

func TestAnnounceWithoutItsDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s := New(Dirs{State: t.TempDir(), Run: file})
	if err := s.Announce(lease.Holder{ContainerID: "c", IfName: "eth0"}); err == nil {
		t.Error("a queue below a file took a note")
	}
}
