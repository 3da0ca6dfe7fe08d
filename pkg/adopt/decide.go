package adopt

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// maxDeadHold bounds the hold of a pod whose namespace died unseen: nobody
// knows when that was (docs/design.md, "Sources, and how they are weighed").
const maxDeadHold = 10 * time.Minute

// Decide weighs the claims of a pool and says which leases they amount to, in
// the order of their addresses. It is pure: the same claims, in any order, give
// the same findings.
//
// For each address the best evidence decides what it is, and all of it together
// whose it is:
//
//  1. In a living namespace: bound.
//  2. In the agent's snapshot: as it stood there, unless a newer file or entry
//     names another container.
//  3. In a cache entry whose namespace lives: bound, even if the address is in no
//     namespace, for gVisor takes it out; to the container of a newer file, if
//     that names another one.
//  4. Marked as held by us: what is left of that hold, never more than its window.
//  5. Of the rest the newest: Kruise's reservation is a firm hold of what is left
//     of its window, all of it where no DEL came; a cache entry whose namespace is
//     gone is a firm hold of its window, at most 10 minutes, or a soft one. They
//     promise nothing to a pod that has another address by newer evidence.
//  6. In a file alone: bound in this boot, for nobody known.
//
// Soft is the length of soft holds; newID makes the ID of a lease.
func Decide(claims []Claim, p lease.Pool, now lease.Instant, soft time.Duration, newID func() string) []Finding {
	d := decision{pool: p, now: now, soft: soft}
	nodes := byAddress(claims)
	verdicts := d.standing(nodes)
	verdicts = append(verdicts, d.fallen(nodes, verdicts)...)
	slices.SortFunc(verdicts, func(a, b verdict) int { return a.lease.Address.Compare(b.lease.Address) })
	supersede(verdicts)
	out := make([]Finding, 0, len(verdicts))
	for _, v := range verdicts {
		if s := nodes[v.lease.Address].first(Snapshot); s != nil && s.Lease.Key() == v.lease.Key() &&
			!s.Lease.Key().IsZero() {
			v.lease.ID = s.Lease.ID // kept through claims
		}
		if v.lease.ID == "" {
			v.lease.ID = newID()
		}
		out = append(out, Finding{Lease: v.lease, Why: v.why, Seen: v.seen})
	}
	return out
}

type decision struct {
	pool lease.Pool
	now  lease.Instant
	soft time.Duration
}

// verdict is a finding in the making.
type verdict struct {
	lease lease.Lease
	why   string
	at    time.Time // of the evidence that names the owner
	seen  bool      // see Finding
}

// evidence are the claims of one address, by kind, the newest first.
type evidence map[Kind][]Claim

// first is the newest claim of a kind, nil if there is none.
func (e evidence) first(k Kind) *Claim {
	if len(e[k]) == 0 {
		return nil
	}
	return &e[k][0]
}

func byAddress(claims []Claim) map[netip.Addr]evidence {
	out := map[netip.Addr]evidence{}
	for _, c := range slices.SortedFunc(slices.Values(claims), newestFirst) {
		if out[c.Address] == nil {
			out[c.Address] = evidence{}
		}
		out[c.Address][c.Kind] = append(out[c.Address][c.Kind], c)
	}
	return out
}

// newestFirst orders claims by age, and those of one age by the names of their sources and by their
// addresses, so that the order in which they were read does not matter.
func newestFirst(a, b Claim) int {
	return cmp.Or(b.Modified.Compare(a.Modified), cmp.Compare(a.Source, b.Source), a.Address.Compare(b.Address))
}

// pod is who a promise is made to: a pod's interface, in one address family.
type pod struct {
	namespace, name, ifName string
	is4                     bool
}

func (c *Claim) pod() pod { return pod{c.Namespace, c.Name, c.IfName, c.Address.Is4()} }

// hasPod reports whether the claim names a pod.
func (c *Claim) hasPod() bool { return c.Name != "" }

func (c *Claim) samePod(o *Claim) bool { return c.hasPod() && c.pod() == o.pod() }

// standing decides about the addresses that something living, the snapshot or
// our own mark tells of: all of them, whatever else they contradict.
func (d decision) standing(nodes map[netip.Addr]evidence) []verdict {
	var out []verdict
	for _, e := range nodes {
		if v, ok := d.stands(e); ok {
			out = append(out, v)
		}
	}
	return out
}

func (d decision) stands(e evidence) (verdict, bool) {
	if e[Living] != nil {
		v := d.living(e)
		v.seen = true
		return v, true
	}
	if s := e.first(Snapshot); s != nil && !changedHands(s, e) {
		return verdict{lease: s.Lease, why: "the agent's snapshot has it so", at: s.Modified}, true
	}
	if e[LiveCache] != nil {
		c := e.entry()
		if c == nil || c.Kind != LiveCache {
			return d.unknown(e.first(File))
		}
		who := d.complete(*c, e)
		return d.bound(who, "in use"+by(who)+": "+c.Source+" names a netns that lives"), true
	}
	if m := e.first(HoldFile); m != nil {
		return d.held(*m, d.left(*m), m.Source)
	}
	return verdict{}, false
}

// fallen decides about the other addresses.
func (d decision) fallen(nodes map[netip.Addr]evidence, standing []verdict) []verdict {
	decided := map[netip.Addr]bool{}
	for _, v := range standing {
		decided[v.lease.Address] = true
	}
	overtaken := overtaken(nodes, standing)
	var out []verdict
	for addr, e := range nodes {
		if decided[addr] || e[HoldFile] != nil { // a hold that is over leaves nothing behind
			continue
		}
		if v, ok := d.dead(e.best(), e.first(File), overtaken); ok {
			out = append(out, v)
		}
	}
	return out
}

// overtaken finds the claims of the dead that promise nothing any more: their pod
// has an address by better evidence, or another one by a newer source. The
// addresses of one attachment stand or fall together.
func overtaken(nodes map[netip.Addr]evidence, standing []verdict) func(*Claim) bool {
	settled := map[pod]bool{}
	for _, v := range standing {
		settled[podOf(v.lease)] = true
	}
	newest := map[pod]Claim{}
	for _, e := range nodes {
		for _, c := range slices.Concat(e[Kruise], e[DeadCache]) {
			if n, known := newest[c.pod()]; !known || newestFirst(c, n) < 0 {
				newest[c.pod()] = c
			}
		}
	}
	return func(c *Claim) bool {
		n := newest[c.pod()]
		return c.hasPod() && (settled[c.pod()] || n.Address != c.Address && n.ContainerID != c.ContainerID)
	}
}

func podOf(l lease.Lease) pod {
	return pod{l.Namespace, l.Name, l.Holder.IfName, l.Address.Is4()}
}

// changedHands reports whether somebody else has the address since the snapshot
// was taken, or has come back to it.
func changedHands(s *Claim, e evidence) bool {
	since := func(c *Claim) bool { return c != nil && c.Modified.After(s.Modified) }
	live, file, mark := e.first(LiveCache), e.first(File), e.first(HoldFile)
	held := s.Lease.State == lease.Held
	return since(live) && (held || live.ContainerID != s.ContainerID) ||
		since(mark) && !(held && mark.samePod(s) && endsWith(s.Lease, mark)) ||
		since(file) && file.ContainerID != "" && file.ContainerID != s.ContainerID
}

// endsWith reports whether a hold ends when a mark says, so that they are one hold, of which the
// lease knows more. A mark has whole seconds.
func endsWith(l lease.Lease, mark *Claim) bool {
	if l.Hold == lease.Forever || mark.Until.IsZero() {
		return l.Hold == lease.Forever && mark.Until.IsZero()
	}
	return mark.Until.Sub(l.ReleasedAt.Wall.Add(l.Hold)).Abs() <= 2*time.Second
}

// living is the lease of an address that an interface has.
func (d decision) living(e evidence) verdict {
	seen, entry := join(e)
	if s := e.first(Snapshot); s != nil && !changedHands(s, e) && (entry == nil || entry.ContainerID == s.ContainerID) {
		return d.confirmed(*s, seen, entry)
	}
	who := seen
	if entry != nil {
		who = *entry
		who.MAC = seen.MAC
		if who.Netns.Ino == 0 {
			who.Netns = seen.Netns
		}
	}
	who = d.complete(who, e)
	why := "in use" + by(who) + ": " + seen.Source + " has it"
	if entry != nil {
		why += ", " + entry.Source + " names the pod's container"
	}
	return d.bound(who, why)
}

// join finds the cache entry of a living address: the one of its namespace, or
// else the one that counts. An address may be in several namespaces; the one
// that an entry names is the pod's.
func join(e evidence) (seen Claim, entry *Claim) {
	for _, s := range e[Living] {
		for i, c := range e[LiveCache] {
			if c.Netns.Same(s.Netns) {
				return s, &e[LiveCache][i]
			}
		}
	}
	return e[Living][0], e.entry()
}

// entry is the cache entry that counts at an address: the newest whose namespace
// lives, or else the newest. A newer file that names another container overrules
// it: then that container's entry counts, if it has one. So does a newer mark of
// another pod overrule the entry of a container that is gone.
func (e evidence) entry() *Claim {
	c, file, mark := e.first(LiveCache), e.first(File), e.first(HoldFile)
	if c == nil {
		c = e.first(DeadCache)
	}
	if c == nil || c.Kind == DeadCache && mark != nil && mark.isNewerThan(c) && mark.hasPod() && !mark.samePod(c) {
		return nil
	}
	if file == nil || !file.isNewerThan(c) || file.ContainerID == c.ContainerID {
		return c
	}
	for _, k := range []Kind{LiveCache, DeadCache} {
		for i := range e[k] {
			if e[k][i].ContainerID == file.ContainerID {
				return &e[k][i]
			}
		}
	}
	return nil
}

// confirmed is a lease of the snapshot whose address is seen in a namespace. A
// hold stands while its last holder lives on. In any other namespace somebody
// has come back to the address, in a container that only an entry whose
// namespace lives can name.
func (d decision) confirmed(s, seen Claim, entry *Claim) verdict {
	l, at := s.Lease, seen.Netns
	named := entry != nil && entry.Kind == LiveCache
	if named {
		at = entry.Netns
	}
	if !l.Holder.Netns.Same(at) {
		if l.State == lease.Held {
			l.State, l.Firm, l.Hold, l.ReleasedAt, l.BoundAt = lease.Bound, false, 0, lease.Instant{}, d.now
		}
		l.Holder.Netns, l.Holder.BootID = at, d.now.BootID
		if !named {
			l.Holder.ContainerID = ""
		}
	}
	return verdict{lease: l, why: "the agent's snapshot has it so, and " + seen.Source + " has the address",
		at: s.Modified}
}

// complete fills in what the best source of an owner does not know from the
// others: a pod and its window from our mark or Kruise's reservation, the
// container from the file. What names another pod is left alone.
func (d decision) complete(who Claim, e evidence) Claim {
	for _, k := range []Kind{HoldFile, Kruise} {
		c := e.first(k)
		stale := k == Kruise && e.best() == nil
		if c == nil || stale || who.hasPod() && !who.samePod(c) {
			continue
		}
		if !who.hasPod() && who.ContainerID == "" {
			who.Namespace, who.Name, who.UID, who.IfName = c.Namespace, c.Name, c.UID, cmp.Or(c.IfName, who.IfName)
			who.ContainerID, who.Modified = c.ContainerID, c.Modified
		}
		if who.samePod(c) && !who.WindowKnown {
			who.Window, who.WindowKnown = c.Window, true
		}
	}
	if f := e.first(File); f != nil && who.ContainerID == "" {
		who.ContainerID, who.IfName = f.ContainerID, cmp.Or(who.IfName, f.IfName)
	}
	return who
}

// best is the claim of the dead that counts at an address: the newest, unless a
// newer file names a container that no other source knows. Of one pod Kruise's
// reservation knows more than the cache: whether a DEL came.
func (e evidence) best() *Claim {
	reservation, entry := e.first(Kruise), e.first(DeadCache)
	c := reservation
	if reservation == nil || entry != nil && !reservation.samePod(entry) && newestFirst(*entry, *reservation) < 0 {
		c = entry
	}
	file := e.first(File)
	if c == nil || file == nil || !file.isNewerThan(c) {
		return c
	}
	for _, known := range slices.Concat(e[Kruise], e[DeadCache], e[LiveCache]) {
		if known.ContainerID == file.ContainerID {
			return c
		}
	}
	return nil
}

// isNewerThan reports whether a file was written after another claim was made. One that cannot be
// read has no time: it may be newer than anything.
func (c *Claim) isNewerThan(o *Claim) bool {
	return c.Modified.IsZero() || c.Modified.After(o.Modified)
}

// dead decides about an address that nothing living claims, by its best dead
// claim and its file.
func (d decision) dead(c, file *Claim, overtaken func(*Claim) bool) (verdict, bool) {
	switch {
	case c == nil:
		return d.unknown(file)
	case overtaken(c) && file == nil:
		return verdict{}, false
	case overtaken(c):
		return d.nobody(*c)
	case c.Kind == DeadCache:
		return d.orphan(*c)
	}
	if v, ok := d.held(*c, d.left(*c), c.Source); ok {
		return v, true
	}
	if file != nil && c.Released && !file.isNewerThan(c) {
		return d.nobody(*c) // the reservation proves that a DEL came after the file
	}
	return d.unknown(file)
}

// orphan is the hold of a pod that died without a DEL.
func (d decision) orphan(c Claim) (verdict, bool) {
	if !c.hasPod() {
		return d.nobody(c)
	}
	hold := d.soft
	if c.Firm = c.Window > 0; c.Firm {
		hold = min(c.Window, maxDeadHold)
	}
	return d.held(c, hold, c.Source+" names a netns that is gone")
}

// nobody is the cool-down of an address whose container is dead, and that is
// promised to nobody.
func (d decision) nobody(c Claim) (verdict, bool) {
	c.Namespace, c.Name, c.UID, c.Window, c.Firm = "", "", "", 0, false
	return d.held(c, d.soft, c.Source+" names a container that is gone")
}

// unknown is the lease of a file that nothing else explains: in use, until
// another boot proves that it is not.
func (d decision) unknown(file *Claim) (verdict, bool) {
	if file == nil {
		return verdict{}, false
	}
	why := "in use, by nobody known, until the next boot: " + file.Source
	if file.ContainerID != "" {
		why += " names container " + file.ContainerID
	}
	return d.bound(*file, why), true
}

// left is how long a hold has to go: never more than it was long.
func (d decision) left(c Claim) time.Duration {
	whole := d.soft
	if c.Firm {
		whole = c.Window
	}
	if !c.Released || c.Until.IsZero() {
		return whole
	}
	return max(min(c.Until.Sub(d.now.Wall), whole), 0)
}

func (d decision) bound(c Claim, why string) verdict {
	l := d.lease(c)
	l.State = lease.Bound
	l.Holder.Netns, l.Holder.BootID = c.Netns, d.now.BootID
	return verdict{lease: l, why: why, at: c.Modified}
}

// held makes a hold; none of no length.
func (d decision) held(c Claim, hold time.Duration, why string) (verdict, bool) {
	l := d.lease(c)
	l.State, l.Firm, l.Hold, l.ReleasedAt = lease.Held, c.Firm, hold, d.now
	l.Holder.Netns = c.Netns
	strength := "softly"
	if c.Firm {
		strength = "firmly"
	}
	who := "nobody"
	if c.hasPod() {
		who = "pod " + c.Namespace + "/" + c.Name
	}
	return verdict{lease: l, why: strength + " held for " + who + ", " + lease.FormatWindow(hold.Round(time.Second)) +
		" to go: " + why, at: c.Modified}, hold > 0
}

func (d decision) lease(c Claim) lease.Lease {
	return lease.Lease{
		Pool: d.pool, Address: c.Address, Namespace: c.Namespace, Name: c.Name, UID: c.UID,
		Holder: lease.Holder{ContainerID: c.ContainerID, IfName: c.IfName}, MAC: c.MAC,
		Window: c.Window, Soft: d.soft, BoundAt: d.now,
	}
}

func by(c Claim) string {
	if !c.hasPod() {
		return ""
	}
	return " by pod " + c.Namespace + "/" + c.Name
}

// supersede: where two containers of one pod live, as after a force delete,
// the newer one is the pod, and the release of the older one promises nothing.
func supersede(verdicts []verdict) {
	newest := map[lease.Key]verdict{}
	for _, v := range verdicts {
		key := v.lease.Key()
		if n, known := newest[key]; v.lease.State == lease.Bound && !key.IsZero() && (!known || v.at.After(n.at)) {
			newest[key] = v
		}
	}
	for i := range verdicts {
		l := &verdicts[i].lease
		n, known := newest[l.Key()]
		if known && l.State == lease.Bound && l.Holder.ContainerID != n.lease.Holder.ContainerID {
			l.Superseded, l.Window = true, 0
			verdicts[i].why += "; a newer container of the pod has its key"
		}
	}
}
