package boltfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// provePages verifies the structure of a bbolt file from its bytes: every page that is reachable
// from the newest meta page has the right type, keys are in order, and no page is used twice, or
// both used and free. bbolt's own check cannot be used: it follows damaged pointers, and the page
// faults in its own goroutine cannot be recovered from. provePages checks every bound, so that it
// is safe for any input.
func provePages(file []byte) error {
	if len(file) < 2*PageSize {
		return fmt.Errorf("%d bytes are too short", len(file))
	}
	head, err := newestMeta(file, int64(len(file)))
	if err != nil {
		return err
	}
	p := prover{file: file, pages: head.pages, seen: map[uint64]bool{0: true, 1: true}}
	if err := p.walk(head.root, 0, true); err != nil {
		return err
	}
	return p.freelist(head.freelist)
}

type prover struct {
	file  []byte
	pages uint64
	seen  map[uint64]bool // pages in use by id, including the two meta pages and overflow pages
}

const (
	pageHeader   = 16
	elementSize  = 16
	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagFreelist = 0x10
	maxDepth     = 32
)

// page is a page with its overflow pages, or the inline page of a small bucket.
type page struct {
	id    uint64
	flags uint16
	count int
	data  []byte // starting with the page header
}

func parsePage(id uint64, b []byte) page {
	le := binary.LittleEndian
	return page{id: id, flags: le.Uint16(b[8:]), count: int(le.Uint16(b[10:])), data: b}
}

// take returns a page, and marks it as used.
func (p *prover) take(id uint64) (page, error) {
	if id < 2 || id >= p.pages {
		return page{}, fmt.Errorf("page %d: out of range, there are %d pages", id, p.pages)
	}
	at := p.file[id*PageSize:]
	if got := binary.LittleEndian.Uint64(at); got != id {
		return page{}, fmt.Errorf("page %d: has the id %d", id, got)
	}
	overflow := uint64(binary.LittleEndian.Uint32(at[12:]))
	if overflow >= p.pages-id {
		return page{}, fmt.Errorf("page %d: has %d overflow pages, beyond the end of the file", id, overflow)
	}
	for i := id; i <= id+overflow; i++ {
		if p.seen[i] {
			return page{}, fmt.Errorf("page %d: used twice", i)
		}
		p.seen[i] = true
	}
	return parsePage(id, at[:(overflow+1)*PageSize]), nil
}

// walk verifies the tree below a page, which may be the root of a bucket.
func (p *prover) walk(id uint64, depth int, isRoot bool) error {
	if depth > maxDepth {
		return fmt.Errorf("page %d: too deep", id)
	}
	pg, err := p.take(id)
	if err != nil {
		return err
	}
	return p.elements(pg, depth, isRoot)
}

// elements verifies the elements of a branch or leaf page, and everything below them. bbolt panics
// if a page has none that is not the root of an empty bucket.
func (p *prover) elements(pg page, depth int, isRoot bool) error {
	if pg.flags != flagBranch && pg.flags != flagLeaf {
		return fmt.Errorf("page %d: unknown type %#x", pg.id, pg.flags)
	}
	if pageHeader+pg.count*elementSize > len(pg.data) {
		return fmt.Errorf("page %d: too small for %d elements", pg.id, pg.count)
	}
	if pg.count == 0 && (!isRoot || pg.flags == flagBranch) {
		return fmt.Errorf("page %d: has no elements", pg.id)
	}
	var last []byte
	for i := range pg.count {
		at := pageHeader + i*elementSize
		key, value, child, err := pg.element(at)
		if err != nil {
			return fmt.Errorf("page %d, element %d: %w", pg.id, i, err)
		}
		if i > 0 && bytes.Compare(last, key) >= 0 {
			return fmt.Errorf("page %d, element %d: not in order", pg.id, i)
		}
		last = key
		switch {
		case pg.flags == flagBranch:
			err = p.walk(child, depth+1, false)
		case child != 0:
			err = p.bucket(value, depth)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// element decodes one element. For a branch page it returns the child page, for a leaf page the
// value, and child 1 if the value is a bucket.
func (pg page) element(at int) (key, value []byte, child uint64, err error) {
	le := binary.LittleEndian
	e := pg.data[at:][:elementSize]
	pos, ksize, vsize := uint64(le.Uint32(e)), uint64(le.Uint32(e[4:])), uint64(0)
	child = le.Uint64(e[8:])
	if pg.flags == flagLeaf {
		child = uint64(le.Uint32(e) & 1)
		pos, ksize, vsize = uint64(le.Uint32(e[4:])), uint64(le.Uint32(e[8:])), uint64(le.Uint32(e[12:]))
	}
	from := uint64(at) + pos
	if end := from + ksize + vsize; pos < elementSize || ksize == 0 || end > uint64(len(pg.data)) {
		return nil, nil, 0, fmt.Errorf("extends from byte %d to %d of %d", from, end, len(pg.data))
	}
	return pg.data[from:][:ksize], pg.data[from+ksize:][:vsize], child, nil
}

// bucket verifies a nested bucket: a page of its own, or an inline page in the value.
func (p *prover) bucket(value []byte, depth int) error {
	if len(value) < 16 {
		return fmt.Errorf("a bucket of %d bytes", len(value))
	}
	if root := binary.LittleEndian.Uint64(value); root != 0 {
		return p.walk(root, depth+1, true)
	}
	inline := value[16:]
	if len(inline) < pageHeader {
		return fmt.Errorf("an inline bucket of %d bytes", len(value))
	}
	return p.elements(parsePage(0, inline), depth+1, true)
}

// freelist verifies that no free page is in use.
func (p *prover) freelist(id uint64) error {
	pg, err := p.take(id)
	if err != nil {
		return fmt.Errorf("freelist: %w", err)
	}
	if pg.flags != flagFreelist {
		return fmt.Errorf("page %d: not a freelist page", id)
	}
	le := binary.LittleEndian
	count, ids := uint64(pg.count), pg.data[pageHeader:]
	if count == 0xFFFF {
		count, ids = le.Uint64(ids), ids[8:]
	}
	if count > uint64(len(ids)/8) {
		return fmt.Errorf("page %d: too small for %d free pages", id, count)
	}
	for i := range count {
		free := le.Uint64(ids[i*8:])
		if free >= p.pages || p.seen[free] {
			return fmt.Errorf("page %d: listed as free, but in use, listed twice or out of range", free)
		}
		p.seen[free] = true
	}
	return nil
}
