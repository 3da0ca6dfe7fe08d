package store

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// FuzzSpooled verifies that a file name in the spool is either ignored, or read as what a DEL with
// these values writes, and that Unspool removes that file only.
func FuzzSpooled(f *testing.F) {
	for _, name := range []string{"1700000000000000000.3600000000000.c1@eth0", "1.2.c@e", "-1.-2.c@e", "1.2.c@e.new",
		"x.2.c@e", "1..c@e", "1.2.", "99999999999999999999.1.c@e", "+1.02.c@e"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		s := open(t)
		if err := os.MkdirAll(s.SpoolDir(), 0o700); err != nil {
			t.Fatal(err)
		}
		other := filepath.Join(s.SpoolDir(), "other")
		if filepath.Base(name) != name || name == "." || name == ".." || name == "other" ||
			os.WriteFile(filepath.Join(s.SpoolDir(), name), nil, 0o600) != nil {
			return // no file name
		}
		if err := os.WriteFile(other, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		records, err := s.Spooled("b1")
		if err != nil || len(records) > 1 {
			t.Fatalf("%q: %+v, %v", name, records, err)
		}
		for _, r := range records {
			who := lease.Holder{ContainerID: r.ContainerID, IfName: r.IfName}
			if again, ok := lease.ParseHolder(who.Name()); !ok || again != who || r.At.BootID != "b1" {
				t.Errorf("%q is read as %+v", name, r)
			}
			if err := errors.Join(s.Unspool(records), s.Spool(r.ContainerID, r.IfName, r.At)); err != nil {
				t.Fatal(err)
			}
			again, err := s.Spooled("b1")
			if err != nil || len(again) != 1 || again[0].ContainerID != r.ContainerID || again[0].At != r.At {
				t.Errorf("%q is written as %+v, %v", name, again, err)
			}
		}
		if _, err := os.Stat(other); err != nil {
			t.Error(err)
		}
	})
}

// FuzzAnnounced verifies that the announce queue writes and removes a file of any holder that can
// be named in its directory only.
func FuzzAnnounced(f *testing.F) {
	for _, name := range []string{"c1@eth0", "..@eth0", "c@..", "a@b@c", "c1@eth0.new"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		who, ok := lease.ParseHolder(name)
		if !ok {
			return
		}
		s := open(t)
		err := s.Announce(who)
		files, unread := os.ReadDir(s.AnnounceDir())
		if unread != nil || (err == nil) != (len(files) == 1) || err == nil && files[0].Name() != name {
			t.Errorf("%q is queued as %v: %v, %v", name, files, err, unread)
		}
		s.Unannounce(who)
		if files, err := os.ReadDir(s.AnnounceDir()); err != nil || len(files) > 0 {
			t.Errorf("%q is removed, and %v is left: %v", name, files, err)
		}
	})
}
