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
	for _, name := range []string{"b1.00000003600000000000.1700000000000000000.c1@eth0", "b1.1.2.c@e", "-.-1.-2.c@e",
		"b1.1.2.c@e.new", "b1.x.2.c@e", "b1.1..c@e", "b1.1.2.", "b1.99999999999999999999.1.c@e", "b1.+1.02.c@e",
		"b2.1.2.c@e", "1.2.c@e", "b1.1.2.#00"} {
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
			if again, ok := lease.ParseAttachment(r.Name()); !ok || again != r.Attachment ||
				r.Stale == (r.At.BootID == "b1") {
				t.Errorf("%q is read as %+v", name, r)
			}
			if err := errors.Join(s.Unspool(records), s.Spool(r.Attachment, lease.Pool{}, r.At)); err != nil {
				t.Fatal(err)
			}
			again, err := s.Spooled("b1")
			if err != nil || len(again) != 1 || again[0].ContainerID != r.ContainerID ||
				again[0].At != r.At && bootName(r.At.BootID) == r.At.BootID {
				t.Errorf("%q is written as %+v, %v", name, again, err)
			}
		}
		if _, err := os.Stat(other); err != nil {
			t.Error(err)
		}
	})
}
