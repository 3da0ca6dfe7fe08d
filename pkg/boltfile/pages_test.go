package boltfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// image returns the bytes of a file with branch pages, nested buckets, inline buckets, one of
// them empty, and free pages, and its newest meta page.
func image(t testing.TB) ([]byte, meta) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "db")
	err := Create(path, func(b *bolt.Tx) error {
		for _, name := range []string{"a large one", "another", "small", "without keys"} {
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
		must.Succeed(t, e)
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
	elementAt := func(i int) uint64 { return head.root*PageSize + pageHeader + uint64(i)*elementSize }
	keyAt := func(i int) uint64 { return elementAt(i) + uint64(le.Uint32(file[elementAt(i)+4:])) }
	valueAt := func(i int) uint64 { return keyAt(i) + uint64(le.Uint32(file[elementAt(i)+8:])) }
	var nested, inline []int // elements of the root page
	for i := range parsePage(head.root, file[head.root*PageSize:]).count {
		if le.Uint64(file[valueAt(i):]) == 0 {
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
	free := parsePage(head.freelist, file[head.freelist*PageSize:]).count
	if len(nested) < 2 || len(inline) == 0 || branchAt == 0 || free < 2 {
		t.Fatalf("the store has %d nested and %d inline buckets, %d free pages, a branch page at %d", len(nested),
			len(inline), free, branchAt)
	}
	for name, c := range map[string]struct {
		size int // of the file
		want string
	}{
		"no second meta page": {2*PageSize - 1, "too short"},
		"no other page":       {2 * PageSize, "truncated to 8192 of"},
		"no last page": {int(head.pages)*PageSize - 1,
			fmt.Sprintf("truncated to %d of %d", head.pages*PageSize-1, head.pages*PageSize)},
	} {
		check.Error(t, provePages(file[:c.size]), c.want, name)
	}
	rootAt, freeAt := head.root*PageSize, head.freelist*PageSize
	nestedAt, inlineAt := elementAt(nested[0]), elementAt(inline[0])
	for name, c := range map[string]struct {
		at   uint64 // of the bytes that are damaged
		as   any
		want string
	}{
		"both meta pages":                 {0, make([]byte, 2*PageSize), "both meta pages are damaged"},
		"another id":                      {rootAt, uint64(head.root + 1), "has the id"},
		"overflow to the end":             {rootAt + 12, uint32(head.pages - head.root), "beyond the end of the file"},
		"overflow to the last":            {rootAt + 12, uint32(head.pages - head.root - 1), "use"},
		"no such page type":               {rootAt + 8, uint16(4), "unknown type 0x4"},
		"too many elements":               {rootAt + 10, uint16(256), "too small for 256 elements"},
		"an element beyond the page":      {elementAt(0) + 12, uint32(PageSize), "element 0: extends from"},
		"a key that begins in the header": {elementAt(0) + 4, uint32(elementSize - 1), "element 0: extends from"},
		"keys out of order":               {keyAt(1), []byte{0}, "element 1: not in order"},
		"a child that is out of range":    {branchAt + pageHeader + 8, uint64(head.pages), "out of range"},
		"a branch page without elements":  {branchAt + 10, uint16(0), "has no elements"},
		"a leaf page without elements":    {leafAt + 10, uint16(0), "has no elements"},
		"a child that is a meta page":     {branchAt + pageHeader + 8, uint64(1), "page 1: out of range"},
		"two elements with one child": {branchAt + pageHeader + elementSize + 8, uint64(leafAt / PageSize),
			"used twice"},
		"a bucket of another bucket":        {valueAt(nested[1]), file[valueAt(nested[0]):][:8], "used twice"},
		"a bucket out of range":             {valueAt(nested[0]), uint64(head.pages), "out of range"},
		"a bucket without a header":         {nestedAt + 12, uint32(15), "a bucket of 15 bytes"},
		"an inline bucket without a header": {inlineAt + 12, uint32(16 + pageHeader - 1), "inline bucket of 31"},
		"an inline bucket of another type":  {valueAt(inline[0]) + 16 + 8, uint16(flagFreelist), "unknown type 0x10"},
		"a freelist with another id":        {freeAt, uint64(0), "freelist: page"},
		"a freelist of another type":        {freeAt + 8, uint16(flagLeaf), "not a freelist page"},
		"more free pages than fit":          {freeAt + 10, uint16(512), "too small for 512 free pages"},
		"a free page that is out of range":  {freeAt + pageHeader, uint64(head.pages), "listed as free, but"},
		"a free page in use": {freeAt + pageHeader, uint64(head.root),
			fmt.Sprintf("page %d: listed as", head.root)},
		"a free page listed twice": {freeAt + pageHeader + 8, file[freeAt+pageHeader:][:8], "listed as free, but"},
	} {
		damaged := bytes.Clone(file)
		_, err := binary.Encode(damaged[c.at:], le, c.as)
		must.Succeed(t, err)
		check.Error(t, provePages(damaged), c.want, name)
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
