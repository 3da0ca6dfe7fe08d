package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/leasehold-cni/leasehold/test/must"
)

// image returns the bytes of a file with branch pages, nested buckets, inline buckets and free
// pages, and its newest meta page.
func image(t testing.TB) ([]byte, meta) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db")
	err := Create(path, func(b *bolt.Tx) error {
		for _, name := range []string{"a large one", "another", "small"} {
			if _, err := b.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		return b.Bucket([]byte("small")).Put([]byte("key"), []byte("value"))
	})
	for _, change := range []func(b *bolt.Bucket, key []byte, i int) error{
		func(b *bolt.Bucket, key []byte, _ int) error { return b.Put(key, make([]byte, 200)) },
		func(b *bolt.Bucket, key []byte, i int) error {
			if i < 200 {
				return nil
			}
			return b.Delete(key)
		},
	} {
		must.Succeed(t, err)
		f, _ := Examine(path, true)
		db, e := Open(f, false, time.Second)
		if e != nil {
			t.Fatal(e)
		}
		err = errors.Join(db.Update(func(b *bolt.Tx) error {
			for i := range 400 {
				key := binary.BigEndian.AppendUint32(nil, uint32(i))
				err := errors.Join(change(b.Bucket([]byte("a large one")), key, i),
					change(b.Bucket([]byte("another")), key, i))
				if err != nil {
					return err
				}
			}
			return nil
		}), db.Close())
	}
	file, e := os.ReadFile(path)
	must.Succeed(t, errors.Join(err, e))
	head, _ := newestMeta(file, int64(len(file)))
	return file, head
}

// TestDamagedPages verifies that provePages finds each kind of damage, and which one it reports.
func TestDamagedPages(t *testing.T) {
	le := binary.LittleEndian
	file, head := image(t)
	must.Succeed(t, provePages(file))
	root := func(b []byte) []byte { return b[head.root*PageSize:][:PageSize] }
	free := func(b []byte) []byte { return b[head.freelist*PageSize:][:PageSize] }
	element := func(b []byte, i int) []byte { return root(b)[pageHeader+i*elementSize:][:elementSize] }
	value := func(b []byte, i int) []byte {
		e := element(b, i)
		at := pageHeader + i*elementSize + int(le.Uint32(e[4:])+le.Uint32(e[8:]))
		return root(b)[at:][:le.Uint32(e[12:])]
	}
	var nested, inline []int // elements of the root page
	for i := range int(le.Uint16(root(file)[10:])) {
		if le.Uint64(value(file, i)) == 0 {
			inline = append(inline, i)
		} else {
			nested = append(nested, i)
		}
	}
	used := prover{file: file, pages: head.pages, seen: map[uint64]bool{}}
	must.Succeed(t, used.walk(head.root, 0, true))
	branchAt := uint64(0) // of a branch page in use
	for id := range used.seen {
		if parsePage(id, file[id*PageSize:]).flags == flagBranch {
			branchAt = id * PageSize
		}
	}
	leafAt := le.Uint64(file[branchAt+pageHeader+8:]) * PageSize // of its first child
	if le.Uint16(root(file)[8:]) != flagLeaf || len(nested) < 2 || len(inline) == 0 || branchAt == 0 ||
		le.Uint16(free(file)[10:]) < 2 {
		t.Fatalf("the store has %d nested and %d inline buckets, %d free pages, a branch page at %d", len(nested),
			len(inline), le.Uint16(free(file)[10:]), branchAt)
	}
	for name, c := range map[string]struct {
		damage func(b []byte) []byte
		want   string
	}{
		"no second meta page": {func(b []byte) []byte { return b[:2*PageSize-1] }, "too short"},
		"no other page":       {func(b []byte) []byte { return b[:2*PageSize] }, "truncated to 8192 of"},
		"no last page": {func(b []byte) []byte { return b[:head.pages*PageSize-1] },
			fmt.Sprintf("truncated to %d of %d", head.pages*PageSize-1, head.pages*PageSize)},
		"both meta pages": {func(b []byte) []byte { clear(b[:2*PageSize]); return b }, "both meta pages are damaged"},
		"another id":      {func(b []byte) []byte { le.PutUint64(root(b), head.root+1); return b }, "has the id"},
		"overflow to the end": {func(b []byte) []byte {
			le.PutUint32(root(b)[12:], uint32(head.pages-head.root))
			return b
		}, "beyond the end of the file"},
		"overflow to the last page": {func(b []byte) []byte {
			le.PutUint32(root(b)[12:], uint32(head.pages-head.root-1))
			return b
		}, "use"},
		"a page type that does not exist": {func(b []byte) []byte { le.PutUint16(root(b)[8:], 4); return b },
			"unknown type 0x4"},
		"more elements than fit": {func(b []byte) []byte { le.PutUint16(root(b)[10:], 256); return b },
			"too small for 256 elements"},
		"an element beyond the page": {func(b []byte) []byte { le.PutUint32(element(b, 0)[12:], PageSize); return b },
			"element 0: extends from"},
		"a key that begins in the header": {func(b []byte) []byte {
			le.PutUint32(element(b, 0)[4:], elementSize-1)
			return b
		}, "element 0: extends from"},
		"keys out of order": {func(b []byte) []byte {
			e := element(b, 1)
			root(b)[pageHeader+elementSize+int(le.Uint32(e[4:]))] = 0
			return b
		}, "element 1: not in order"},
		"a child that is out of range": {func(b []byte) []byte {
			le.PutUint64(b[branchAt+pageHeader+8:], head.pages)
			return b
		}, "out of range"},
		"a branch page without elements": {func(b []byte) []byte { le.PutUint16(b[branchAt+10:], 0); return b },
			"has no elements"},
		"a leaf page without elements": {func(b []byte) []byte {
			le.PutUint16(b[leafAt+10:], 0)
			return b
		}, "has no elements"},
		"a child that is a meta page": {func(b []byte) []byte {
			le.PutUint64(b[branchAt+pageHeader+8:], 1)
			return b
		}, "page 1: out of range"},
		"two elements with one child": {func(b []byte) []byte {
			copy(b[branchAt+pageHeader+elementSize+8:], b[branchAt+pageHeader+8:][:8])
			return b
		}, "used twice"},
		"a bucket of another bucket": {func(b []byte) []byte {
			copy(value(b, nested[1])[:8], value(b, nested[0])[:8])
			return b
		}, "used twice"},
		"a bucket out of range": {func(b []byte) []byte {
			le.PutUint64(value(b, nested[0]), head.pages)
			return b
		}, "out of range"},
		"a bucket without a header": {func(b []byte) []byte { le.PutUint32(element(b, nested[0])[12:], 15); return b },
			"a bucket of 15 bytes"},
		"an inline bucket without a page header": {func(b []byte) []byte {
			le.PutUint32(element(b, inline[0])[12:], 16+pageHeader-1)
			return b
		}, "an inline bucket of 31 bytes"},
		"an inline bucket of another type": {func(b []byte) []byte {
			le.PutUint16(value(b, inline[0])[16+8:], flagFreelist)
			return b
		}, "unknown type 0x10"},
		"a freelist with another id": {func(b []byte) []byte { le.PutUint64(free(b), 0); return b }, "freelist: page"},
		"a freelist of another type": {func(b []byte) []byte { le.PutUint16(free(b)[8:], flagLeaf); return b },
			"not a freelist page"},
		"more free pages than fit": {func(b []byte) []byte { le.PutUint16(free(b)[10:], 512); return b },
			"too small for 512 free pages"},
		"a free page that is out of range": {func(b []byte) []byte {
			le.PutUint64(free(b)[pageHeader:], head.pages)
			return b
		}, "listed as free, but"},
		"a free page in use": {func(b []byte) []byte { le.PutUint64(free(b)[pageHeader:], head.root); return b },
			fmt.Sprintf("page %d: listed as free, but", head.root)},
		"a free page listed twice": {func(b []byte) []byte {
			copy(free(b)[pageHeader+8:], free(b)[pageHeader:][:8])
			return b
		}, "listed as free, but"},
	} {
		if err := provePages(c.damage(bytes.Clone(file))); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func FuzzProvePages(f *testing.F) {
	file, head := image(f)
	f.Add(uint32(2*PageSize+8), []byte{1})
	f.Fuzz(func(t *testing.T, at uint32, b []byte) {
		damaged := bytes.Clone(file[:head.pages*PageSize])
		copy(damaged[int(at)%len(damaged):], b)
		_ = provePages(damaged) // must not panic
	})
}

// TestCreateOverADirectory verifies that a directory in the place of the temporary file is removed.
func TestCreateOverADirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "db")
	must.Succeed(t, os.MkdirAll(filepath.Join(path+".new", "full"), 0o700))
	must.Succeed(t, Create(path, func(*bolt.Tx) error { return nil }))
	if f, err := Examine(path, true); err != nil {
		t.Error(err)
	} else {
		f.Close()
	}
}
