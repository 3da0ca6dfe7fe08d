package store

import (
	"context"
	"errors"
	"os"
	"reflect"
	"testing"
)

func TestASnapshotOutlivesTheStore(t *testing.T) {
	s := open(t)
	if got, _, err := s.ReadSnapshot(); err != nil || got != nil {
		t.Errorf("before any: %v %v", got, err)
	}
	a, b := fresh("10.0.0.5", "db-0", "c1"), fresh("10.0.0.6", "db-1", "c2")
	update(t, s, func(tx *Tx) error { return errors.Join(put(tx, a), put(tx, b)) })
	if err := s.WriteSnapshot(context.Background(), t0); err != nil {
		t.Fatal(err)
	}
	os.Remove(s.path())
	got, at, err := s.ReadSnapshot()
	if err != nil || len(got) != 2 || !reflect.DeepEqual(got[0], a) || !at.Equal(t0.Wall) {
		t.Errorf("%+v at %s, %v", got, at, err)
	}
}

func TestABadSnapshotIsSaidSo(t *testing.T) {
	s := open(t)
	update(t, s, func(tx *Tx) error { return put(tx, fresh("10.0.0.5", "db-0", "c1")) })
	for content, want := range map[string]error{"{": ErrDamaged, "": ErrDamaged, `{"format":9}`: ErrNewer} {
		if err := os.WriteFile(s.snapshotPath(), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := s.ReadSnapshot(); !errors.Is(err, want) {
			t.Errorf("%q: %v", content, err)
		}
	}
}
