package store

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"iter"
	"net/netip"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

var (
	bucketMeta      = []byte("meta")
	bucketPools     = []byte("pools")
	bucketLeases    = []byte("leases")
	bucketHolders   = []byte("holders")
	bucketKeys      = []byte("keys")
	bucketExpiry    = []byte("expiry")
	bucketTaken     = []byte("taken")
	bucketSets      = []byte("sets")
	bucketJournal   = []byte("journal")
	bucketCounters  = []byte("counters")
	bucketNamedPods = []byte("named pods")

	indexes = [][]byte{bucketHolders, bucketKeys, bucketExpiry} // of the leases

	allBuckets = slices.Concat(indexes, [][]byte{bucketMeta, bucketPools, bucketLeases, bucketSets, bucketJournal,
		bucketCounters, bucketTaken, bucketNamedPods})

	metaFormat  = []byte("format")
	metaID      = []byte("id") // of the store
	metaBoot    = []byte("boot")
	metaBegin   = []byte("begin")   // number of the last entry of the journal before this boot
	metaCleaned = []byte("cleaned") // and the pool: the boot, see PoolBoot
	metaLook    = []byte("look")    // and the pool, see LastFullScan
	metaLost    = []byte("lost")
	metaLostIn  = []byte("lost in") // the boot
	metaSpaces  = []byte("spaces")
	metaLimits  = []byte("limits")
	metaCaches  = []byte("caches") // and the pool, see CacheDirs
	metaLink    = []byte("link")   // and the pool, see Link
)

// Tx is a transaction. It is valid only inside the closure that it was passed to.
type Tx struct {
	// Then is called if the transaction has succeeded, before the lock is released; it may be nil.
	Then func()

	b      *bolt.Tx
	dirty  bool
	bootID func() string // of the Store

	pools map[lease.Pool]poolID
	byID  map[poolID]poolEntry

	queued map[string]lease.Lease // what queued DELs make of leases, by their keys; empty in an Update
}

// poolEntry is an entry of the list of pools.
type poolEntry struct {
	lease.Pool
	key      []byte // in the bucket; its path may have links
	imported bool
}

func newTx(b *bolt.Tx) (*Tx, error) {
	tx := &Tx{b: b, pools: map[lease.Pool]poolID{}, byID: map[poolID]poolEntry{}}
	if err := tx.checkFormat(); err != nil {
		return nil, err
	}
	for _, name := range allBuckets {
		if b.Bucket(name) == nil {
			return nil, fmt.Errorf("%w: bucket %q is missing", ErrLost, name)
		}
	}
	return tx, tx.readPools()
}

// format is the format of the store (docs/upgrade.md, "The store").
const format = 1

// checkFormat returns ErrNewer for a store of a newer format.
func (tx *Tx) checkFormat() error {
	meta := tx.bucket(bucketMeta)
	if meta == nil || len(meta.Get(metaFormat)) != 1 {
		return fmt.Errorf("%w: the format is missing", ErrLost)
	}
	if has := meta.Get(metaFormat)[0]; has > format {
		return fmt.Errorf("%w: the store has format %d, this version supports up to %d", ErrNewer, has, format)
	}
	return nil
}

// ID returns the id of the store: 16 hex digits.
func (tx *Tx) ID() string { return string(tx.bucket(bucketMeta).Get(metaID)) }

// readPools reads the list of pools. One whose path has links now gets the canonical path, unless
// that is the path of another pool of the list.
func (tx *Tx) readPools() error {
	bucket, canonical := tx.bucket(bucketPools), map[string]string{}
	return bucket.ForEach(func(k, v []byte) error {
		dir, network, ok := bytes.Cut(k, []byte{0})
		p := lease.Pool{DataDir: string(dir), Network: string(network)}
		id, imported, err := decodePool(p, v)
		if !ok || err != nil {
			return fmt.Errorf("%w: the list of pools is damaged: %q", ErrLost, k)
		}
		if canonical[p.DataDir] == "" { // there may be thousands of networks
			canonical[p.DataDir] = files.Canonical(p.DataDir)
		}
		now := lease.Pool{DataDir: canonical[p.DataDir], Network: p.Network}
		if _, taken := tx.pools[now]; !taken && bucket.Get(poolKey(now)) == nil {
			p = now
		}
		tx.pools[p], tx.byID[id] = id, poolEntry{p, bytes.Clone(k), imported}
		return nil
	})
}

// putPool writes the entry of a pool in the list.
func (tx *Tx) putPool(p lease.Pool, id poolID, imported bool) error {
	next := poolEntry{p, poolKey(p), imported}
	if old := tx.byID[id].key; old != nil && !bytes.Equal(old, next.key) {
		if err := tx.delete(bucketPools, old); err != nil {
			return err
		}
	}
	tx.pools[p], tx.byID[id] = id, next
	return tx.put(bucketPools, next.key, encodePool(p, id, imported))
}

func (tx *Tx) bucket(name []byte) *bolt.Bucket { return tx.b.Bucket(name) }

func (tx *Tx) put(bucket, k, v []byte) error {
	tx.dirty = true
	if err := tx.bucket(bucket).Put(k, v); err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	return nil
}

func (tx *Tx) delete(bucket, k []byte) error {
	tx.dirty = true
	if err := tx.bucket(bucket).Delete(k); err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	return nil
}

// prefixed yields the entries of a bucket whose keys have a prefix, in the order of the keys. The
// entries must not be changed meanwhile.
func (tx *Tx) prefixed(bucket, prefix []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(k, v []byte) bool) {
		c := tx.bucket(bucket).Cursor()
		for k, v := c.Seek(prefix); k != nil && bytes.HasPrefix(k, prefix) && yield(k, v); k, v = c.Next() {
		}
	}
}

// Imported reports whether import has run for the pool, that is, whether the leases that the host
// showed were added when the pool was first used, or first used after a loss. If not, addresses
// without a lease may be in use.
func (tx *Tx) Imported(p lease.Pool) bool { return tx.byID[tx.pools[p]].imported }

// SetImported sets what Imported returns to true.
func (tx *Tx) SetImported(p lease.Pool) error {
	id, err := tx.poolID(p)
	if err != nil || tx.byID[id].imported {
		return err
	}
	return tx.putPool(p, id, true)
}

// Pools returns all pools that have or had a lease.
func (tx *Tx) Pools() (out []lease.Pool) {
	for _, v := range tx.prefixed(bucketPools, nil) {
		out = append(out, tx.byID[poolID(binary.BigEndian.Uint32(v))].Pool)
	}
	return out
}

// poolID returns the number of a pool. A new pool gets the next number.
func (tx *Tx) poolID(p lease.Pool) (poolID, error) {
	if id, ok := tx.pools[p]; ok {
		return id, nil
	}
	id := poolID(1)
	for used := range tx.byID {
		id = max(id, used+1)
	}
	return id, tx.putPool(p, id, false)
}

// Get returns the lease of an address, with State None if there is none.
func (tx *Tx) Get(p lease.Pool, a netip.Addr) (lease.Lease, error) {
	return tx.at(leaseKey(tx.pools[p], a))
}

// at decodes the record of a lease key.
func (tx *Tx) at(k []byte) (lease.Lease, error) {
	v := tx.bucket(bucketLeases).Get(k)
	if v == nil {
		return lease.Lease{}, nil
	}
	id, addr, ok := splitLease(k)
	if !ok {
		return lease.Lease{}, fmt.Errorf("%w: invalid key %x", ErrDamaged, k)
	}
	l, err := decodeLease(v, tx.byID[id].Pool)
	if err != nil {
		return lease.Lease{}, fmt.Errorf("%s: %w", addr, err)
	}
	if l.Address != addr {
		return lease.Lease{}, fmt.Errorf("%s: %w: the record is of %s", addr, ErrDamaged, l.Address)
	}
	if next, released := tx.queued[string(k)]; released {
		return next, nil
	}
	return l, nil
}

// Put writes the lease of an address and updates every index. If next has State None, Put removes
// the lease. If the record does not change, nothing is written.
func (tx *Tx) Put(p lease.Pool, a netip.Addr, next lease.Lease) error {
	id, err := tx.poolID(p)
	if err != nil {
		return err
	}
	k := leaseKey(id, a)
	old, damaged := tx.at(k)
	var record []byte
	if next.State != lease.None {
		if next.Pool != p || next.Address != a {
			return fmt.Errorf("store: lease of %s in %s put as %s in %s", next.Address, next.Pool.Network, a, p.Network)
		}
		if err := next.Validate(); err != nil {
			return fmt.Errorf("store: %s: %w", a, err)
		}
		record = encodeLease(next)
	}
	if bytes.Equal(record, tx.bucket(bucketLeases).Get(k)) {
		return nil
	}
	if record == nil {
		err = tx.delete(bucketLeases, k)
	} else {
		err = tx.put(bucketLeases, k, record)
	}
	if err != nil {
		return err
	}
	if damaged != nil {
		return tx.Reindex() // the index entries of the damaged record are not known
	}
	return tx.reindex(id, k, old, next)
}

// reindex removes the index entries of old, and adds those of next.
func (tx *Tx) reindex(id poolID, k []byte, old, next lease.Lease) error {
	before, after := entries(id, k, old), entries(id, k, next)
	for _, e := range before {
		if !slices.Contains(after, e) {
			if err := tx.delete([]byte(e.bucket), []byte(e.key)); err != nil {
				return err
			}
		}
	}
	for _, e := range after {
		if !slices.Contains(before, e) {
			if err := tx.put([]byte(e.bucket), []byte(e.key), nil); err != nil {
				return err
			}
		}
	}
	if err := tx.count(id, old, -1); err != nil {
		return err
	}
	if err := tx.count(id, next, 1); err != nil {
		return err
	}
	if is, was := next.State != lease.None, old.State != lease.None; is != was {
		return tx.setTaken(k, is)
	}
	return nil
}

type entry struct{ bucket, key string }

// entries returns the index entries of a lease: by holder while it is bound, by its key, and by its
// end; a named lease also has one by its pod.
func entries(id poolID, k []byte, l lease.Lease) (out []entry) {
	add := func(bucket, prefix, rest []byte) {
		out = append(out, entry{string(bucket), string(prefix) + string(rest)})
	}
	if l.State == lease.Bound {
		add(bucketHolders, holderPrefix(l.Holder.ContainerID, l.Holder.IfName), k)
	}
	if key := l.Key(); !key.IsZero() {
		add(bucketKeys, podPrefix(id, key), k[4:])
		if key.ReserveAs != "" {
			key.Name, key.ReserveAs = l.Name, ""
			add(bucketKeys, podPrefix(id, key), k[4:])
		}
	}
	if t, ok := end(l); ok {
		add(bucketExpiry, expiryKey(id, t, l.Address), nil)
	}
	return out
}

// setTaken sets or clears the bit of an address in the bitmaps of taken addresses. k is the key of
// its lease.
func (tx *Tx) setTaken(k []byte, on bool) error {
	_, a, _ := splitLease(k)
	base, bit := chunkOf(a)
	ck := appendAddr(append([]byte(nil), k[:4]...), base)
	bits := make([]byte, chunkBytes)
	copy(bits, tx.bucket(bucketTaken).Get(ck))
	if on {
		bits[bit/8] |= 1 << (bit % 8)
	} else {
		bits[bit/8] &^= 1 << (bit % 8)
	}
	if bytes.Equal(bits, make([]byte, chunkBytes)) {
		return tx.delete(bucketTaken, ck)
	}
	return tx.put(bucketTaken, ck, bits)
}

// Free returns the lowest address from lo to hi, inclusive, that has no lease. It reads a bitmap of
// 256 addresses at a time.
func (tx *Tx) Free(p lease.Pool, lo, hi netip.Addr) (netip.Addr, bool) {
	id, taken := tx.pools[p], tx.bucket(bucketTaken)
	for a := lo; a.IsValid() && a.Compare(hi) <= 0; {
		base, bit := chunkOf(a)
		bits := taken.Get(leaseKey(id, base))
		for ; bit < 256; bit++ {
			if len(bits) != chunkBytes || bits[bit/8]&(1<<(bit%8)) == 0 {
				found := inChunk(base, bit)
				return found, found.Compare(hi) <= 0
			}
		}
		a = inChunk(base, 255).Next()
	}
	return netip.Addr{}, false
}

// Get, ByHolder, ByKey and ByPod return ErrDamaged if a record that they need is damaged. Methods
// that list leases skip damaged records.

// ByHolder returns the leases that are bound to an attachment. It looks in all pools, because the
// configuration of a DEL may differ from that of its ADD.
func (tx *Tx) ByHolder(containerID, ifName string) ([]lease.Lease, error) {
	prefix := holderPrefix(containerID, ifName)
	leases, err := tx.collect(bucketHolders, prefix, func(rest []byte) []byte { return rest })
	return slices.DeleteFunc(leases, func(l lease.Lease) bool { return l.State != lease.Bound }), err
}

// ByAttachment returns the leases that a DEL or CHECK of an attachment in a pool is about: those
// that are bound to it (ByHolder), or if there are none, those of the pool that are bound to its
// container with an unknown interface. Such a lease is from a file of host-local before v0.8.0
// (docs/design.md, "Files that name the container alone").
func (tx *Tx) ByAttachment(who lease.Attachment, p lease.Pool) ([]lease.Lease, error) {
	leases, err := tx.ByHolder(who.ContainerID, who.IfName)
	if err != nil || len(leases) > 0 {
		return leases, err
	}
	leases, err = tx.ByHolder(who.ContainerID, "")
	return slices.DeleteFunc(leases, func(l lease.Lease) bool { return l.Pool != p }), err
}

// ByKey returns the bound and held leases of a key. Those of a pod's key are not named.
func (tx *Tx) ByKey(key lease.Key) ([]lease.Lease, error) {
	id := tx.pools[key.Pool]
	leases, err := tx.collect(bucketKeys, podPrefix(id, key),
		func(rest []byte) []byte { return append(id.prefix(), rest...) })
	return slices.DeleteFunc(leases, func(l lease.Lease) bool { return l.ReserveAs != key.ReserveAs }), err
}

// ByPod returns the bound and held leases of a pod, named or not, in all pools and on all
// interfaces.
func (tx *Tx) ByPod(namespace, name string) ([]lease.Lease, error) {
	var out []lease.Lease
	for _, p := range tx.Pools() {
		id := tx.pools[p]
		prefix := append(id.prefix(), namespace+"\x00"+name+"\x00"...)
		leases, err := tx.collect(bucketKeys, prefix, func(rest []byte) []byte {
			_, addr, _ := bytes.Cut(rest, []byte{0}) // it follows the interface
			return append(id.prefix(), addr...)
		})
		if err != nil {
			return nil, err
		}
		out = append(out, leases...)
	}
	return out, nil
}

// collect returns the leases of the index entries with a prefix.
func (tx *Tx) collect(bucket, prefix []byte, leaseKeyOf func([]byte) []byte) ([]lease.Lease, error) {
	var out []lease.Lease
	for k := range tx.prefixed(bucket, prefix) {
		l, err := tx.at(leaseKeyOf(k[len(prefix):]))
		if err != nil {
			return nil, err
		}
		if l.State == lease.None {
			return nil, fmt.Errorf("%w: an index has a lease without a record", ErrDamaged)
		}
		out = append(out, l)
	}
	return out, nil
}

// Unrecorded calls fn for every address that is taken according to the bitmaps but has no record.
// The reason may be a record whose key is damaged.
func (tx *Tx) Unrecorded(fn func(lease.Pool, netip.Addr)) {
	for k, bits := range tx.prefixed(bucketTaken, nil) {
		p, base, ok := tx.placeOf(k)
		if !ok || len(bits) != chunkBytes {
			continue
		}
		for bit := range 8 * chunkBytes {
			addr := inChunk(base, bit)
			if bits[bit/8]&(1<<(bit%8)) != 0 && tx.bucket(bucketLeases).Get(leaseKey(tx.pools[p], addr)) == nil {
				fn(p, addr)
			}
		}
	}
}

// placeOf returns the pool and the address of a lease key. ok is false for an invalid key; only
// Check reports those.
func (tx *Tx) placeOf(k []byte) (p lease.Pool, addr netip.Addr, ok bool) {
	id, addr, ok := splitLease(k)
	in, known := tx.byID[id]
	return in.Pool, addr, ok && known
}

// All calls fn for every lease, ordered by pool and address, until fn returns false. For a damaged
// record it passes a lease with State None, which has only the pool and the address, and the error.
func (tx *Tx) All(fn func(lease.Lease, error) bool) { tx.leases(nil)(fn) }

// In is All for the leases of a pool. The transaction must not be changed in the loop.
func (tx *Tx) In(p lease.Pool) iter.Seq2[lease.Lease, error] { return tx.leases(tx.pools[p].prefix()) }

// leases is All for the leases whose keys have a prefix.
func (tx *Tx) leases(prefix []byte) iter.Seq2[lease.Lease, error] {
	return func(yield func(lease.Lease, error) bool) {
		for k := range tx.prefixed(bucketLeases, prefix) {
			l, err := tx.at(k)
			if err != nil {
				l.Pool, l.Address, _ = tx.placeOf(k)
			}
			if !yield(l, err) {
				return
			}
		}
	}
}

// Bound returns the bound leases that can be read, in the order of All.
func (tx *Tx) Bound() iter.Seq[lease.Lease] {
	return func(yield func(lease.Lease) bool) {
		tx.All(func(l lease.Lease, err error) bool { return err != nil || l.State != lease.Bound || yield(l) })
	}
}

// InPool returns the leases of a pool, ordered by address, except damaged ones.
func (tx *Tx) InPool(p lease.Pool) []lease.Lease {
	leases, _ := tx.AllIn(p)
	return leases
}

// AllIn is InPool. err is ErrDamaged if a record is damaged.
func (tx *Tx) AllIn(p lease.Pool) (out []lease.Lease, err error) {
	for l, damage := range tx.In(p) {
		if err = cmp.Or(err, damage); damage == nil {
			out = append(out, l)
		}
	}
	return out, err
}

// HoldsIn returns the holds of a pool from lo to hi, inclusive, ordered by address, and the number
// of bound leases there, which it does not decode: a full range set has thousands. err is
// ErrDamaged if a record is damaged. It leaves out the leases of addresses that are not usable.
func (tx *Tx) HoldsIn(p lease.Pool, lo, hi netip.Addr, usable func(netip.Addr) bool) (held []lease.Lease, bound int,
	err error) {
	id := tx.pools[p]
	last, c := leaseKey(id, hi), tx.bucket(bucketLeases).Cursor()
	for k, v := c.Seek(leaseKey(id, lo)); k != nil && bytes.Compare(k, last) <= 0; k, v = c.Next() {
		_, addr, ok := splitLease(k)
		if !ok || !usable(addr) {
			continue
		}
		state, damage := stateOf(v)
		l := lease.Lease{State: state}
		if state != lease.Bound && damage == nil {
			l, damage = tx.at(k)
		}
		switch {
		case damage != nil:
			err = fmt.Errorf("%s of network %s: %w", addr, p.Network, ErrDamaged)
		case l.State == lease.Held:
			held = append(held, l)
		default:
			bound++
		}
	}
	return held, bound, err
}

// Ending returns up to limit holds of a pool, the earliest end first according to the wall clock of
// their release. Whether a hold has ended must be decided by lease.Lapsed.
func (tx *Tx) Ending(p lease.Pool, limit int) []lease.Lease {
	id := tx.pools[p]
	var out []lease.Lease
	for k := range tx.prefixed(bucketExpiry, id.prefix()) {
		if len(out) == limit {
			break
		}
		if l, err := tx.at(append(id.prefix(), k[12:]...)); err == nil && l.State == lease.Held {
			out = append(out, l)
		}
	}
	return out
}

// Lost returns the reason why the former store was lost and this one was created in its place, ""
// if none was lost. While it is not "", leases of pools for which Imported returns false may be
// missing. A loss ends with its boot, which ends all containers.
func (tx *Tx) Lost() string {
	meta := tx.bucket(bucketMeta)
	in := string(meta.Get(metaLostIn))
	if now := tx.bootID(); in != "" && now != "" && now != in {
		return ""
	}
	return string(meta.Get(metaLost))
}

// AcceptLoss ends the recovery: it clears Lost. Leases that have not been recovered by then stay
// missing, and their addresses can be assigned again.
func (tx *Tx) AcceptLoss() error {
	return tx.delete(bucketMeta, metaLost)
}

// Boot returns the id of the boot in which the journal got its last entry.
func (tx *Tx) Boot() string { return string(tx.bucket(bucketMeta).Get(metaBoot)) }

// BeginBoot records that entries of the journal are of a boot from now on. id is "" if it cannot be
// read: then nothing is recorded.
func (tx *Tx) BeginBoot(id string) error {
	if id == "" || tx.Boot() == id {
		return nil
	}
	if err := tx.put(bucketMeta, metaBegin, binary.BigEndian.AppendUint64(nil, tx.JournalEnd())); err != nil {
		return err
	}
	return tx.put(bucketMeta, metaBoot, []byte(id))
}

// EachBoot calls fn for each entry of the journal, with whether it is of a boot before the one with
// the given id.
func (tx *Tx) EachBoot(id string, fn func(n Entry, isEarlier bool)) {
	last := tx.JournalEnd()
	if tx.Boot() == id {
		v := tx.bucket(bucketMeta).Get(metaBegin)
		if len(v) != 8 {
			return // it is not known which entries are older
		}
		last = binary.BigEndian.Uint64(v)
	}
	for seq, n := range tx.Entries(0) {
		fn(n, seq <= last)
	}
}

// PoolBoot returns the id of the boot in which the leases of earlier boots were last released in a
// pool. The first call of a boot that has host-local's lock of the pool does that.
func (tx *Tx) PoolBoot(p lease.Pool) string { return tx.poolText(metaCleaned, p) }

// SetPoolBoot sets the boot id that PoolBoot returns.
func (tx *Tx) SetPoolBoot(p lease.Pool, id string) error {
	return tx.setPoolText(metaCleaned, p, id)
}

// NamespaceIDs returns the boot id and the namespaces in which the plugin last ran an ADD
// (host.Host.NamespaceIDs), or "" if there was none. Other programs compare them with their own
// to prove that they see the processes and mounts of the node.
func (tx *Tx) NamespaceIDs() string { return string(tx.bucket(bucketMeta).Get(metaSpaces)) }

// SetNamespaceIDs sets what NamespaceIDs returns.
func (tx *Tx) SetNamespaceIDs(spaces string) error {
	return tx.put(bucketMeta, metaSpaces, []byte(spaces))
}

// LastFullScan returns when an ADD last examined all holders of a pool because the pool was
// exhausted.
func (tx *Tx) LastFullScan(p lease.Pool) lease.Instant {
	i, _ := parseInstant([]byte(tx.poolText(metaLook, p)))
	return i
}

// SetLastFullScan sets the time that LastFullScan returns.
func (tx *Tx) SetLastFullScan(p lease.Pool, now lease.Instant) error {
	return tx.setPoolText(metaLook, p, string(appendInstant(nil, now, "")))
}

// Len returns the number of records of leases, including damaged ones.
func (tx *Tx) Len() int {
	n := 0
	for range tx.prefixed(bucketLeases, nil) {
		n++
	}
	return n
}
