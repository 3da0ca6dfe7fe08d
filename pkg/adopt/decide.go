package adopt

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// maxDeadHold is the longest hold for a pod whose namespace is gone without a DEL, since the time
// of its end is unknown (docs/design.md, "Sources, and how they are weighed").
const maxDeadHold = 10 * time.Minute

// Decide returns the leases that follow from the claims of a pool, ordered by address. It is a pure
// function, and the order of the claims does not matter.
//
// The state of an address follows from the first of these that applies, its owner from all claims
// together:
//
//  1. An interface in a living namespace has the address: bound.
//  2. The agent's snapshot has a lease: that lease, unless a newer file or cache entry names
//     another container.
//  3. A cache entry names a living namespace: bound, even if no interface has the address, because
//     gVisor removes it from the interface. If a newer file names another container, it is bound
//     to that one.
//  4. A file has our mark of a hold: the rest of that hold, at most its window.
//  5. The newest of the remaining claims. Kruise's reservation is a firm hold for the rest of its
//     window, or the whole window if there was no DEL. A cache entry whose namespace is gone is a
//     firm hold of its window, at most 10 minutes, or a soft hold. Neither is for a pod that has
//     another address by newer evidence.
//  6. There is only a file: bound until the next boot, by an unknown owner.
//
// soft is the length of soft holds. newID returns the ID of a new lease.
func Decide(claims []Claim, p lease.Pool, now lease.Instant, soft time.Duration, newID func() string) []Finding {
	d := decision{pool: p, now: now, soft: soft}
	nodes := byAddress(claims)
	verdicts := d.conclusive(nodes)
	verdicts = append(verdicts, d.inconclusive(nodes, verdicts)...)
	slices.SortFunc(verdicts, func(a, b verdict) int { return a.lease.Address.Compare(b.lease.Address) })
	supersede(verdicts)
	out := make([]Finding, 0, len(verdicts))
	for _, v := range verdicts {
		if s := nodes[v.lease.Address].first(Snapshot); s != nil && s.Lease.Key() == v.lease.Key() &&
			!s.Lease.Key().IsZero() {
			v.lease.ID = s.Lease.ID // claims have no ID
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

// verdict is the decision about one address.
type verdict struct {
	lease lease.Lease
	why   string
	at    time.Time // of the evidence that names the owner
	seen  bool      // see Finding
}

// evidence is the claims of one address by kind, the newest first.
type evidence map[Kind][]Claim

// first returns the newest claim of a kind, nil if there is none.
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

// pod identifies an interface of a pod in one address family.
type pod struct {
	namespace, name, ifName string
	is4                     bool
}

func (c *Claim) pod() pod { return pod{c.Namespace, c.Name, c.IfName, c.Address.Is4()} }

// hasPod reports whether the claim names a pod.
func (c *Claim) hasPod() bool { return c.Name != "" }

func (c *Claim) samePod(o *Claim) bool { return c.hasPod() && c.pod() == o.pod() }

// conclusive decides about the addresses for which rules 1 to 4 of Decide apply.
func (d decision) conclusive(nodes map[netip.Addr]evidence) []verdict {
	var out []verdict
	for _, e := range nodes {
		if v, ok := d.conclude(e); ok {
			out = append(out, v)
		}
	}
	return out
}

// conclude applies the rules 1 to 4 of Decide. It reports false if none applies.
func (d decision) conclude(e evidence) (verdict, bool) {
	if e[Living] != nil {
		v := d.living(e)
		v.seen = true
		return v, true
	}
	if s := e.first(Snapshot); s != nil && !isOutdated(s, e) {
		return verdict{lease: s.Lease, why: "in the agent's snapshot", at: s.Modified}, true
	}
	if e[LiveCache] != nil {
		c := e.entry()
		if c == nil || c.Kind != LiveCache {
			return d.unknown(e.first(File))
		}
		who := d.complete(*c, e)
		return d.bound(who, "in use"+by(who)+": "+c.Source+" names a living netns"), true
	}
	if m := e.first(HoldFile); m != nil {
		return d.held(*m, d.rest(*m), m.Source)
	}
	return verdict{}, false
}

// inconclusive decides about the other addresses, by the rules 5 and 6 of Decide.
func (d decision) inconclusive(nodes map[netip.Addr]evidence, concluded []verdict) []verdict {
	decided := map[netip.Addr]bool{}
	for _, v := range concluded {
		decided[v.lease.Address] = true
	}
	isSuperseded := supersededClaims(nodes, concluded)
	var out []verdict
	for addr, e := range nodes {
		if decided[addr] || e[HoldFile] != nil { // the hold is over
			continue
		}
		if v, ok := d.decideDead(e.bestDead(), e.first(File), isSuperseded); ok {
			out = append(out, v)
		}
	}
	return out
}

// supersededClaims returns a function that reports whether a claim about a pod that is gone
// reserves nothing: the pod has an address by rules 1 to 4, or another one by a newer source. The
// addresses of one attachment are treated alike.
func supersededClaims(nodes map[netip.Addr]evidence, concluded []verdict) func(*Claim) bool {
	decided := map[pod]bool{}
	for _, v := range concluded {
		decided[podOf(v.lease)] = true
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
		return c.hasPod() && (decided[c.pod()] || n.Address != c.Address && n.ContainerID != c.ContainerID)
	}
}

func podOf(l lease.Lease) pod {
	return pod{l.Namespace, l.Name, l.Holder.IfName, l.Address.Is4()}
}

// isOutdated reports whether newer evidence shows that the address was released or bound again
// after the snapshot.
func isOutdated(s *Claim, e evidence) bool {
	since := func(c *Claim) bool { return c != nil && c.Modified.After(s.Modified) }
	live, file, mark := e.first(LiveCache), e.first(File), e.first(HoldFile)
	held := s.Lease.State == lease.Held
	return since(live) && (held || live.ContainerID != s.ContainerID) ||
		since(mark) && !(held && mark.samePod(s) && endsWith(s.Lease, mark)) ||
		since(file) && file.ContainerID != "" && file.ContainerID != s.ContainerID
}

// endsWith reports whether a lease and a mark are of the same hold: they end at the same time,
// within the precision of a mark.
func endsWith(l lease.Lease, mark *Claim) bool {
	if l.Hold == lease.Forever || mark.Until.IsZero() {
		return l.Hold == lease.Forever && mark.Until.IsZero()
	}
	return mark.Until.Sub(l.ReleasedAt.Wall.Add(l.Hold)).Abs() <= 2*time.Second
}

// living returns the lease of an address that an interface has.
func (d decision) living(e evidence) verdict {
	seen, entry := join(e)
	if s := e.first(Snapshot); s != nil && !isOutdated(s, e) && (entry == nil || entry.ContainerID == s.ContainerID) {
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

// join returns the claim of the interface that has an address, and the pod's cache entry, nil if
// there is none. An address may be in several namespaces; the pod's is the one that a cache entry
// names.
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

// entry returns the relevant cache entry of an address: the newest with a living namespace, else
// the newest. If a newer file names another container, it is that container's entry, nil if it has
// none. It is also nil if the container is gone and a newer mark names another pod.
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

// confirmed returns the verdict for a lease of the snapshot, s, if an interface, seen, has its
// address. If the interface is in the network namespace of the lease's holder, the lease does not
// change: a pod that was released may still exist. If it is in another namespace, the address was
// bound again after the snapshot. The lease is then bound in that namespace, and its container is
// unknown unless entry, the cache entry of a living namespace, names it. The caller has checked
// that entry does not name another container than the snapshot.
func (d decision) confirmed(s, seen Claim, entry *Claim) verdict {
	l, netns := s.Lease, seen.Netns
	named := entry != nil && entry.Kind == LiveCache
	if named {
		netns = entry.Netns
	}
	if !l.Holder.Netns.Same(netns) {
		if l.State == lease.Held {
			l.State, l.BoundAt = lease.Bound, d.now
			l.Firm, l.Hold, l.ReleasedAt = false, 0, lease.Instant{}
		}
		l.Holder.Netns, l.Holder.BootID = netns, d.now.BootID
		if !named {
			l.Holder.ContainerID = ""
		}
	}
	return verdict{lease: l, why: "in the agent's snapshot, and " + seen.Source + " has the address", at: s.Modified}
}

// complete adds to a claim what it lacks: the pod and its window from our mark or Kruise's
// reservation, the container from the file. Claims that name another pod are ignored.
func (d decision) complete(who Claim, e evidence) Claim {
	for _, k := range []Kind{HoldFile, Kruise} {
		c := e.first(k)
		stale := k == Kruise && e.bestDead() == nil
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

// bestDead returns the relevant claim about a pod that is gone: the newest, but nil if a newer file
// names a container that no other source knows. If both are of the same pod, Kruise's reservation
// has precedence over the cache entry, because it also shows whether there was a DEL.
func (e evidence) bestDead() *Claim {
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

// isNewerThan reports whether a file may have been written after another claim was made. For a file
// that cannot be read it reports true, because its time is unknown.
func (c *Claim) isNewerThan(o *Claim) bool {
	return c.Modified.IsZero() || c.Modified.After(o.Modified)
}

// decideDead decides about one address by the rules 5 and 6 of Decide. c and file may be nil.
func (d decision) decideDead(c, file *Claim, isSuperseded func(*Claim) bool) (verdict, bool) {
	switch {
	case c == nil:
		return d.unknown(file)
	case isSuperseded(c) && file == nil:
		return verdict{}, false
	case isSuperseded(c):
		return d.anonymous(*c)
	case c.Kind == DeadCache:
		return d.orphan(*c)
	}
	if v, ok := d.held(*c, d.rest(*c), c.Source); ok {
		return v, true
	}
	if file != nil && c.Released && !file.isNewerThan(c) {
		return d.anonymous(*c) // the reservation proves a DEL after the file was written
	}
	return d.unknown(file)
}

// orphan returns the hold of a pod that is gone without a DEL.
func (d decision) orphan(c Claim) (verdict, bool) {
	if !c.hasPod() {
		return d.anonymous(c)
	}
	hold := d.soft
	if c.Firm = c.Window > 0; c.Firm {
		hold = min(c.Window, maxDeadHold)
	}
	return d.held(c, hold, c.Source+" names a netns that is gone")
}

// anonymous returns a soft hold that is not for any pod, for an address whose container is gone.
func (d decision) anonymous(c Claim) (verdict, bool) {
	c.Namespace, c.Name, c.UID, c.Window, c.Firm = "", "", "", 0, false
	return d.held(c, d.soft, c.Source+" names a container that is gone")
}

// unknown returns the lease of an address of which only a file is known. It is bound until the next
// boot, which ends all sandboxes.
func (d decision) unknown(file *Claim) (verdict, bool) {
	if file == nil {
		return verdict{}, false
	}
	why := "in use by an unknown owner until the next boot: " + file.Source
	if file.ContainerID != "" {
		why += " names container " + file.ContainerID
	}
	return d.bound(*file, why), true
}

// rest returns the remaining time of a hold, at most its length.
func (d decision) rest(c Claim) time.Duration {
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

// held returns a hold. It reports false if its length is 0.
func (d decision) held(c Claim, hold time.Duration, why string) (verdict, bool) {
	l := d.lease(c)
	l.State, l.Firm, l.Hold, l.ReleasedAt = lease.Held, c.Firm, hold, d.now
	l.Holder.Netns = c.Netns
	kind := "soft hold"
	if c.Firm {
		kind = "firm hold"
	}
	who := "no pod"
	if c.hasPod() {
		who = "pod " + c.Namespace + "/" + c.Name
	}
	return verdict{lease: l, why: fmt.Sprintf("%s for %s, %s left: %s", kind, who,
		lease.FormatWindow(hold.Round(time.Second)), why), at: c.Modified}, hold > 0
}

func (d decision) lease(c Claim) lease.Lease {
	return lease.Lease{
		Pool: d.pool, Address: c.Address, Namespace: c.Namespace, Name: c.Name, UID: c.UID,
		Holder: lease.Holder{ContainerID: c.ContainerID, IfName: c.IfName}, MAC: c.MAC,
		Window: c.Window, Soft: d.soft, BoundAt: d.now,
	}
}

// by returns a text that names the claim's pod, "" if it has none.
func by(c Claim) string {
	if !c.hasPod() {
		return ""
	}
	return " by pod " + c.Namespace + "/" + c.Name
}

// supersede marks the older bound leases of a pod that has several containers, as after a forced
// delete. The key belongs to the newest; the older ones are not retained when they are released.
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
