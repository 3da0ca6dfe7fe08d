package importer

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// maxDeadHold is the longest hold for a pod whose namespace is gone without a DEL. It is short,
// because it is not known when the pod ended (docs/design.md, "What is imported").
const maxDeadHold = lease.Window(10 * time.Minute)

// decide returns the leases to import from the candidates of a pool, ordered by address. It is a
// pure function, and the order of the candidates does not matter.
//
// The first of these rules that applies determines the state of an address:
//
//  1. An interface in a living namespace has the address, or a cache entry names a namespace that
//     exists: bound to the owner (evidence.owner). gVisor removes addresses from interfaces.
//  2. A file has a hold of ours: the rest of that hold, at most its window.
//  3. A container is gone that the file names, or there is no file: Kruise's reservation becomes a
//     hold for the rest of its window, or for the whole window if there was no DEL. A cache
//     entry, which must not be older than the file, becomes a hold for its window, at most 10
//     minutes, or a cool-down if it has no window.
//  4. There is any other file: bound to an unknown owner until the next boot.
//
// A pod that has another address by the rules 1 and 2, or by a later source, gets no hold.
//
// A file is ignored if a source that names another container is not older (isFormer). Nothing else
// compares the times of two kinds of sources (docs/decisions.md, "Smaller ones of the calls").
//
// coolDown is the length of cool-downs. newID returns the ID of a new lease.
func decide(candidates []candidate, p lease.Pool, now lease.Instant, coolDown time.Duration,
	newID func() string) []Finding {
	d := decision{pool: p, now: now, coolDown: coolDown}
	addresses := byAddress(candidates)
	findings, has := map[netip.Addr]Finding{}, map[pod]bool{} // the pods that have an address by the rules 1 and 2
	add := func(f Finding, ok bool) {
		if ok {
			findings[f.Lease.Address] = f
		}
	}
	for _, e := range addresses {
		switch {
		case e.isInUse():
			add(d.inUse(e), true)
		case e[fromHoldFile] != nil:
			m := e[fromHoldFile][0]
			add(d.held(m, d.rest(m), m.Source))
		}
	}
	for _, f := range findings {
		has[f.pod] = true
	}
	last := lastOfPods(addresses)
	for _, e := range addresses {
		if !e.isInUse() && e[fromHoldFile] == nil {
			add(d.gone(e, func(c candidate) bool {
				l := last[c.pod()]
				return c.hasPod() && (has[c.pod()] || l.Address != c.Address && l.ContainerID != c.ContainerID)
			}))
		}
	}
	supersede(findings)
	out := make([]Finding, 0, len(findings))
	for _, addr := range slices.SortedFunc(maps.Keys(findings), netip.Addr.Compare) {
		f, e := findings[addr], addresses[addr]
		f.Lease.ID = newID() // candidates have none
		f.Seen, f.InUse = e[fromLiving] != nil, e.isInUse()
		f.IsOurs = !f.InUse && e[fromHoldFile] != nil
		f.FormerInFile = e.formerInFile(f.Lease.Holder.ContainerID)
		out = append(out, f)
	}
	return out
}

type decision struct {
	pool     lease.Pool
	now      lease.Instant
	coolDown time.Duration
}

// evidence is the candidates of one address by kind, the newest first.
type evidence map[kind][]candidate

// first returns the newest candidate of a kind, nil if there is none.
func (e evidence) first(k kind) *candidate {
	return e.entry(k, func(*candidate) bool { return true })
}

// entry returns the newest candidate of a kind that matches, nil if there is none.
func (e evidence) entry(k kind, match func(*candidate) bool) *candidate {
	for i := range e[k] {
		if match(&e[k][i]) {
			return &e[k][i]
		}
	}
	return nil
}

func byAddress(candidates []candidate) map[netip.Addr]evidence {
	out := map[netip.Addr]evidence{}
	for _, c := range slices.SortedFunc(slices.Values(candidates), newestFirst) {
		if out[c.Address] == nil {
			out[c.Address] = evidence{}
		}
		out[c.Address][c.Kind] = append(out[c.Address][c.Kind], c)
	}
	return out
}

// newestFirst orders candidates by age, and those of one age by the names of their sources and by
// their addresses, so that the order in which they were read does not matter.
func newestFirst(a, b candidate) int {
	return cmp.Or(b.Modified.Compare(a.Modified), cmp.Compare(a.Source, b.Source), a.Address.Compare(b.Address))
}

// pod identifies an interface of a pod in one range set, and in one address family if the sets are
// not known.
type pod struct {
	namespace, name, ifName string
	set                     int
	is4                     bool
}

func (c *candidate) pod() pod { return pod{c.Namespace, c.Name, c.IfName, c.set, c.Address.Is4()} }

// hasPod reports whether the candidate names a pod.
func (c *candidate) hasPod() bool { return c.Name != "" }

func (c *candidate) samePod(o *candidate) bool { return c.hasPod() && c.pod() == o.pod() }

// lastOfPods returns, for each pod that is gone, its reservation, or its newest cache entry if it
// has none.
func lastOfPods(addresses map[netip.Addr]evidence) map[pod]candidate {
	last := map[pod]candidate{}
	for _, e := range addresses {
		for _, c := range slices.Concat(e[fromKruise], e[fromDeadCache]) {
			l, known := last[c.pod()]
			if !known || c.Kind > l.Kind || c.Kind == l.Kind && newestFirst(c, l) < 0 {
				last[c.pod()] = c
			}
		}
	}
	return last
}

// inUse returns the finding about an address that is in use (rule 1 of decide).
func (d decision) inUse(e evidence) Finding {
	who, seen := e.owner()
	why := "in use"
	if seen != nil {
		who.addInterface(*seen)
	}
	for _, k := range []kind{fromHoldFile, fromKruise} {
		if c := e.first(k); c != nil && who.samePod(c) && !who.WindowKnown {
			who.Window, who.WindowKnown, who.ReserveAs = c.Window, true, c.ReserveAs
		}
	}
	if who.hasPod() {
		why += " by pod " + who.Namespace + "/" + who.Name
	}
	why += ": " + who.Source + " shows it"
	if seen != nil && who.Kind != fromLiving {
		why += ", " + seen.Source + " has it"
	}
	return d.bound(who, why)
}

// addInterface adds what an interface shows that has the address.
func (c *candidate) addInterface(seen candidate) {
	if c.Netns.Ino == 0 {
		c.Netns = seen.Netns
	}
	if c.Netns.Same(seen.Netns) {
		c.MAC = seen.MAC
	}
	c.IfName = cmp.Or(c.IfName, seen.IfName)
}

// isInUse reports whether an interface has the address, or a container is alive that had it.
func (e evidence) isInUse() bool { return e[fromLiving] != nil || e[fromLiveCache] != nil }

// owner returns whose an address in use is, and an interface that has it, nil if none does:
//
//	the first source there is                              whose the address is
//	a cache entry of a namespace whose interface has it    the entry's
//	the newest entry of another namespace that exists      the entry's (gVisor)
//	the file, if its container is not a former one         its container's, or its pod's
//	Kruise's reservation                                   its container's, or its pod's
//	the interface                                          nobody's
//
// An entry of that container, whose path leads nowhere, says more of it than the file.
func (e evidence) owner() (who candidate, seen *candidate) {
	for i, s := range e[fromLiving] {
		if c := e.entry(fromLiveCache, func(c *candidate) bool { return c.Netns.Same(s.Netns) }); c != nil {
			return *c, &e[fromLiving][i]
		}
	}
	seen = e.first(fromLiving)
	if c := e.first(fromLiveCache); c != nil {
		return *c, seen
	}
	named := cmp.Or(e.named(), e.first(fromKruise), seen)
	return *cmp.Or(e.entry(fromDeadCache, of(named)), e.entry(fromKruise, of(named)), named), seen
}

// named returns the candidate of the file, if it names a pod or a container that is not a former
// one, otherwise nil.
func (e evidence) named() *candidate {
	file := cmp.Or(e.first(fromHoldFile), e.first(fromFile))
	if file == nil || file.ContainerID == "" && !file.hasPod() || file.Kind == fromFile && e.isFormer(file) {
		return nil
	}
	return file
}

// of returns a function that reports whether a candidate names the container of another one, or its
// pod if that names no container.
func of(o *candidate) func(*candidate) bool {
	return func(c *candidate) bool {
		return c.ContainerID == o.ContainerID && o.ContainerID != "" || o.ContainerID == "" && c.samePod(o)
	}
}

// isFormer reports whether the container in a file had the address before another one: a source
// that names another is not older, and the container does not live. The Kruise fork leaves the
// container of its first ADD in the file. While host-local processes an ADD, the file is the newest
// source.
func (e evidence) isFormer(file *candidate) bool {
	if file.Unreadable || e.entry(fromLiveCache, of(file)) != nil {
		return false
	}
	for _, k := range []kind{fromDeadCache, fromKruise, fromLiveCache} {
		for _, c := range e[k] {
			if c.ContainerID != file.ContainerID && !c.Modified.Before(file.Modified) {
				return true
			}
		}
	}
	return false
}

// formerInFile reports whether the file of an address names another container than its lease
// (holder), and one that had the address before.
func (e evidence) formerInFile(holder string) bool {
	file := e.first(fromFile)
	return file != nil && file.ContainerID != "" && holder != "" && file.ContainerID != holder && e.isFormer(file)
}

// gone returns the finding about an address that no living container has, by the rules 3 and 4 of
// decide.
func (d decision) gone(e evidence, isSuperseded func(candidate) bool) (Finding, bool) {
	file, c, entry := e.first(fromFile), e.first(fromKruise), e.first(fromDeadCache)
	if file != nil && !e.isFormer(file) {
		if entry = e.entry(fromDeadCache, of(file)); entry != nil && entry.Modified.Before(file.Modified) {
			entry = nil // of a former life of the container
		}
		if c != nil && c.ContainerID != file.ContainerID && (entry == nil || !entry.samePod(c)) {
			c = nil
		}
	}
	switch c = cmp.Or(c, entry); {
	case file != nil && file.Unreadable, c == nil:
		return d.unknown(file)
	case isSuperseded(*c) && file == nil:
		return Finding{}, false
	case isSuperseded(*c):
		return d.anonymous(*c)
	case c.Kind == fromDeadCache:
		return d.orphan(*c)
	}
	v, ok := d.held(*c, d.rest(*c), c.Source)
	switch {
	case ok:
		return v, true
	case file != nil && c.Released: // the reservation proves a DEL
		return d.anonymous(*c)
	}
	return d.unknown(file)
}

// orphan returns the hold for a pod that is gone without a DEL, c being its cache entry.
func (d decision) orphan(c candidate) (Finding, bool) {
	if !c.hasPod() {
		return d.anonymous(c)
	}
	hold := lease.Window(d.coolDown)
	if c.IsHold = c.Window > 0; c.IsHold {
		hold = min(c.Window, maxDeadHold)
	}
	return d.held(c, hold, c.Source+" names a netns that is gone")
}

// anonymous returns a cool-down without a key, for an address whose container is gone.
func (d decision) anonymous(c candidate) (Finding, bool) {
	c.Namespace, c.Name, c.UID, c.ReserveAs, c.Window, c.IsHold = "", "", "", "", 0, false
	return d.held(c, lease.Window(d.coolDown), c.Source+" names a container that is gone")
}

// unknown returns the lease of an address that has only a file of host-local. The lease has an
// unknown owner and stays bound until the next boot, which ends all sandboxes.
func (d decision) unknown(file *candidate) (Finding, bool) {
	if file == nil {
		return Finding{}, false
	}
	why := "in use by an unknown owner until the next boot: " + file.Source
	if file.ContainerID != "" {
		why += " names container " + file.ContainerID
	}
	return d.bound(*file, why), true
}

// rest returns the remaining time of the hold that a candidate shows.
func (d decision) rest(c candidate) lease.Window {
	whole := lease.Window(d.coolDown)
	if c.IsHold {
		whole = c.Window
	}
	if !c.Released || c.Until.IsZero() {
		return whole
	}
	return max(min(lease.Window(c.Until.Sub(d.now.Wall)), whole), 0)
}

func (d decision) bound(c candidate, why string) Finding {
	l := d.lease(c)
	l.State = lease.Bound
	l.Holder.Netns, l.Holder.BootID = c.Netns, d.now.BootID
	return Finding{Lease: l, Why: why, pod: c.pod(), at: c.Modified}
}

// held returns a hold. It reports false if its length is 0.
func (d decision) held(c candidate, hold lease.Window, why string) (Finding, bool) {
	l := d.lease(c)
	l.State, l.IsHold, l.Hold, l.ReleasedAt = lease.Held, c.IsHold, hold, d.now
	l.Holder.Netns = c.Netns
	kind := "cool-down"
	if c.IsHold {
		kind = "hold"
	}
	who := "no pod"
	if c.hasPod() {
		who = "pod " + c.Namespace + "/" + c.Name
	}
	return Finding{Lease: l, Why: fmt.Sprintf("%s for %s, %s left: %s", kind, who,
		hold.Round(time.Second), why), pod: c.pod(), at: c.Modified}, hold > 0
}

func (d decision) lease(c candidate) lease.Lease {
	return lease.Lease{
		Pool: d.pool, Address: c.Address, Namespace: c.Namespace, Name: c.Name, UID: c.UID,
		ReserveAs: c.ReserveAs,
		Holder:    lease.Holder{ContainerID: c.ContainerID, IfName: c.IfName}, MAC: c.MAC,
		Window: c.Window, CoolDown: d.coolDown, BoundAt: d.now,
	}
}

// supersede sets Superseded for the older bound leases of a pod that has several containers, as
// after a forced deletion. The key belongs to the lease of the newest container, and the release of
// an older one starts no hold. A reservation name is that of several pods.
func supersede(findings map[netip.Addr]Finding) {
	newest := map[lease.Key]Finding{}
	for _, f := range findings {
		key := f.Lease.Key()
		n, known := newest[key]
		isNewer := f.at.After(n.at) || f.at.Equal(n.at) && f.Lease.Address.Less(n.Lease.Address)
		if f.Lease.State == lease.Bound && !key.IsZero() && key.ReserveAs == "" && (!known || isNewer) {
			newest[key] = f
		}
	}
	for addr, f := range findings {
		n, known := newest[f.Lease.Key()]
		if known && f.Lease.State == lease.Bound && f.Lease.Holder.ContainerID != n.Lease.Holder.ContainerID {
			f.Lease.Superseded, f.Lease.Window = true, 0
			f.Why += "; a newer container of the pod has its key"
			findings[addr] = f
		}
	}
}
