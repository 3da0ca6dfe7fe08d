package adopt

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// maxDeadHold is the longest hold for a pod whose namespace is gone without a DEL. It is short,
// because it is not known when the pod ended (docs/design.md, "What is imported").
const maxDeadHold = lease.Window(10 * time.Minute)

// decide returns the leases to adopt from the candidates of a pool, ordered by address. It is a
// pure function, and the order of the candidates does not matter.
//
// The first of these rules that applies determines the state of an address. The owner is determined
// by all candidates together:
//
//  1. An interface in a living namespace has the address: bound.
//  2. A cache entry names a living namespace: bound, even if no interface has the address, because
//     gVisor removes it from the interface. If a newer file names another container, it is bound
//     to that one.
//  3. A file has our mark of a hold: the rest of that hold, at most its window.
//  4. The newest of the remaining candidates. Kruise's reservation becomes a firm hold for the rest
//     of its window, or for the whole window if there was no DEL. A cache entry whose namespace is
//     gone becomes a firm hold for its window, at most 10 minutes, or a soft hold if it has no
//     window. Neither becomes a hold if a newer source shows the pod with another address.
//  5. There is only a file: bound until the next boot, by an unknown owner.
//
// soft is the length of soft holds. newID returns the ID of a new lease.
func decide(candidates []candidate, p lease.Pool, now lease.Instant, soft time.Duration,
	newID func() string) []Finding {
	d := decision{pool: p, now: now, soft: soft}
	addresses := byAddress(candidates)
	verdicts := d.conclusive(addresses)
	verdicts = append(verdicts, d.inconclusive(addresses, verdicts)...)
	slices.SortFunc(verdicts, func(a, b verdict) int { return a.lease.Address.Compare(b.lease.Address) })
	supersede(verdicts)
	out := make([]Finding, 0, len(verdicts))
	for _, v := range verdicts {
		v.lease.ID = newID() // candidates have none
		former := addresses[v.lease.Address].formerInFile(v)
		out = append(out, Finding{Lease: v.lease, Why: v.why, Seen: v.seen, FormerInFile: former})
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
	at    time.Time // when the source that shows the owner was written
	seen  bool      // see Finding
}

// evidence is the candidates of one address by kind, the newest first.
type evidence map[kind][]candidate

// first returns the newest candidate of a kind, nil if there is none.
func (e evidence) first(k kind) *candidate {
	if len(e[k]) == 0 {
		return nil
	}
	return &e[k][0]
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

// pod identifies an interface of a pod in one address family.
type pod struct {
	namespace, name, ifName string
	is4                     bool
}

func (c *candidate) pod() pod { return pod{c.Namespace, c.Name, c.IfName, c.Address.Is4()} }

// hasPod reports whether the candidate names a pod.
func (c *candidate) hasPod() bool { return c.Name != "" }

func (c *candidate) samePod(o *candidate) bool { return c.hasPod() && c.pod() == o.pod() }

// conclusive returns the verdicts for the addresses to which one of the rules 1 to 3 of decide
// applies.
func (d decision) conclusive(addresses map[netip.Addr]evidence) []verdict {
	var out []verdict
	for _, e := range addresses {
		if v, ok := d.conclude(e); ok {
			out = append(out, v)
		}
	}
	return out
}

// conclude returns the verdict by the rules 1 to 3 of decide. It reports false if none applies.
func (d decision) conclude(e evidence) (verdict, bool) {
	if e[fromLiving] != nil {
		v := d.living(e)
		v.seen = true
		return v, true
	}
	if e[fromLiveCache] != nil {
		c := e.entry()
		if c == nil || c.Kind != fromLiveCache {
			return d.unknown(e.first(fromFile))
		}
		who := d.complete(*c, e)
		return d.bound(who, "in use"+by(who)+": "+c.Source+" names a living netns"), true
	}
	if m := e.first(fromHoldFile); m != nil {
		return d.held(*m, d.rest(*m), m.Source)
	}
	return verdict{}, false
}

// inconclusive returns the verdicts for the other addresses, by the rules 4 and 5 of decide.
func (d decision) inconclusive(addresses map[netip.Addr]evidence, concluded []verdict) []verdict {
	decided := map[netip.Addr]bool{}
	for _, v := range concluded {
		decided[v.lease.Address] = true
	}
	isSuperseded := supersededCandidates(addresses, concluded)
	var out []verdict
	for addr, e := range addresses {
		if decided[addr] || e[fromHoldFile] != nil { // the hold is over
			continue
		}
		if v, ok := d.decideDead(e.bestDead(), e.first(fromFile), isSuperseded); ok {
			out = append(out, v)
		}
	}
	return out
}

// supersededCandidates returns a function that reports whether the candidate of a pod that is gone
// does not reserve its address: the pod has an address by the rules 1 to 3, or a newer source shows
// the pod with another address. All addresses of one attachment are treated alike.
func supersededCandidates(addresses map[netip.Addr]evidence, concluded []verdict) func(*candidate) bool {
	decided := map[pod]bool{}
	for _, v := range concluded {
		decided[podOf(v.lease)] = true
	}
	newest := map[pod]candidate{}
	for _, e := range addresses {
		for _, c := range slices.Concat(e[fromKruise], e[fromDeadCache]) {
			if n, known := newest[c.pod()]; !known || newestFirst(c, n) < 0 {
				newest[c.pod()] = c
			}
		}
	}
	return func(c *candidate) bool {
		n := newest[c.pod()]
		return c.hasPod() && (decided[c.pod()] || n.Address != c.Address && n.ContainerID != c.ContainerID)
	}
}

func podOf(l lease.Lease) pod {
	return pod{l.Namespace, l.Name, l.Holder.IfName, l.Address.Is4()}
}

// living returns the verdict for an address that an interface has (rule 1 of decide).
func (d decision) living(e evidence) verdict {
	seen, entry := join(e)
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

// join returns the interface that has an address (seen), and the cache entry of its pod, or nil if
// there is none. If interfaces in several namespaces have the address, join chooses the namespace
// that a cache entry names.
func join(e evidence) (seen candidate, entry *candidate) {
	for _, s := range e[fromLiving] {
		for i, c := range e[fromLiveCache] {
			if c.Netns.Same(s.Netns) {
				return s, &e[fromLiveCache][i]
			}
		}
	}
	return e[fromLiving][0], e.entry()
}

// entry returns the relevant cache entry of an address: the newest one whose namespace exists,
// otherwise the newest one. If a newer file names another container, entry returns the cache entry
// of that container, or nil if it has none. It also returns nil if the entry's container is gone
// and another one has had the address since (isFollowed).
func (e evidence) entry() *candidate {
	c, file := e.first(fromLiveCache), e.first(fromFile)
	if c == nil {
		c = e.first(fromDeadCache)
	}
	if c == nil || c.Kind == fromDeadCache && e.isFollowed(c) {
		return nil
	}
	if file == nil || !file.isNewerThan(c) || file.ContainerID == c.ContainerID {
		return c
	}
	for _, k := range []kind{fromLiveCache, fromDeadCache} {
		for i := range e[k] {
			if e[k][i].ContainerID == file.ContainerID {
				return &e[k][i]
			}
		}
	}
	return nil
}

// isFollowed reports whether a newer mark names another pod than a cache entry, or a newer
// reservation of Kruise another container.
func (e evidence) isFollowed(c *candidate) bool {
	mark, reservation := e.first(fromHoldFile), e.first(fromKruise)
	return mark != nil && mark.isNewerThan(c) && mark.hasPod() && !mark.samePod(c) ||
		reservation != nil && reservation.isNewerThan(c) && reservation.ContainerID != "" &&
			reservation.ContainerID != c.ContainerID
}

// formerInFile reports whether the file of a verdict's address names another container than the
// verdict, and is older than the source that shows the verdict's. The Kruise fork leaves the file
// as it is when it gives a held address to the pod's next container. If the cache shows the other
// container alive, formerInFile reports false.
func (e evidence) formerInFile(v verdict) bool {
	file, holder := e.first(fromFile), v.lease.Holder.ContainerID
	if file == nil || file.ContainerID == "" || holder == "" || file.ContainerID == holder {
		return false
	}
	isLive := slices.ContainsFunc(e[fromLiveCache], func(c candidate) bool { return c.ContainerID == file.ContainerID })
	return !isLive && !file.isNewerThan(&candidate{Modified: v.at})
}

// complete adds to a candidate what it lacks: the pod and its window from our mark or Kruise's
// reservation, the container from the file. Candidates that name another pod are ignored.
func (d decision) complete(who candidate, e evidence) candidate {
	for _, k := range []kind{fromHoldFile, fromKruise} {
		c := e.first(k)
		stale := k == fromKruise && e.bestDead() == nil
		if c == nil || stale || who.hasPod() && !who.samePod(c) {
			continue
		}
		if !who.hasPod() && who.ContainerID == "" {
			who.Namespace, who.Name, who.UID, who.IfName = c.Namespace, c.Name, c.UID, cmp.Or(c.IfName, who.IfName)
			who.ContainerID, who.Modified = c.ContainerID, c.Modified
		}
		if who.samePod(c) && !who.WindowKnown {
			who.Window, who.WindowKnown, who.Reservation = c.Window, true, c.Reservation
		}
	}
	if f := e.first(fromFile); f != nil && who.ContainerID == "" {
		who.ContainerID, who.IfName = f.ContainerID, cmp.Or(who.IfName, f.IfName)
	}
	return who
}

// bestDead returns the relevant candidate of a pod that is gone: the newer one of Kruise's
// reservation and the cache entry. If both are of the same pod, the reservation has precedence,
// because it also shows whether there was a DEL. bestDead returns nil if a newer file names a
// container that no other source has.
func (e evidence) bestDead() *candidate {
	reservation, entry := e.first(fromKruise), e.first(fromDeadCache)
	c := reservation
	if reservation == nil || entry != nil && !reservation.samePod(entry) && newestFirst(*entry, *reservation) < 0 {
		c = entry
	}
	file := e.first(fromFile)
	if c == nil || file == nil || !file.isNewerThan(c) {
		return c
	}
	for _, known := range slices.Concat(e[fromKruise], e[fromDeadCache], e[fromLiveCache]) {
		if known.ContainerID == file.ContainerID {
			return c
		}
	}
	return nil
}

// isNewerThan reports whether a file may have been written after the source of another candidate.
// It reports true for a file that cannot be read, because its time is unknown.
func (c *candidate) isNewerThan(o *candidate) bool {
	return c.Modified.IsZero() || c.Modified.After(o.Modified)
}

// decideDead returns the verdict for one address by the rules 4 and 5 of decide. c is the result of
// bestDead, file is host-local's file; both may be nil.
func (d decision) decideDead(c, file *candidate, isSuperseded func(*candidate) bool) (verdict, bool) {
	switch {
	case c == nil:
		return d.unknown(file)
	case isSuperseded(c) && file == nil:
		return verdict{}, false
	case isSuperseded(c):
		return d.anonymous(*c)
	case c.Kind == fromDeadCache:
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

// orphan returns the hold for a pod that is gone without a DEL, c being its cache entry.
func (d decision) orphan(c candidate) (verdict, bool) {
	if !c.hasPod() {
		return d.anonymous(c)
	}
	hold := lease.Window(d.soft)
	if c.Firm = c.Window > 0; c.Firm {
		hold = min(c.Window, maxDeadHold)
	}
	return d.held(c, hold, c.Source+" names a netns that is gone")
}

// anonymous returns a soft hold without a key, for an address whose container is gone.
func (d decision) anonymous(c candidate) (verdict, bool) {
	c.Namespace, c.Name, c.UID, c.Reservation, c.Window, c.Firm = "", "", "", "", 0, false
	return d.held(c, lease.Window(d.soft), c.Source+" names a container that is gone")
}

// unknown returns the lease of an address that has only a file of host-local. The lease has an
// unknown owner and stays bound until the next boot, which ends all sandboxes.
func (d decision) unknown(file *candidate) (verdict, bool) {
	if file == nil {
		return verdict{}, false
	}
	why := "in use by an unknown owner until the next boot: " + file.Source
	if file.ContainerID != "" {
		why += " names container " + file.ContainerID
	}
	return d.bound(*file, why), true
}

// rest returns the remaining time of the hold that a candidate shows.
func (d decision) rest(c candidate) lease.Window {
	whole := lease.Window(d.soft)
	if c.Firm {
		whole = c.Window
	}
	if !c.Released || c.Until.IsZero() {
		return whole
	}
	return max(min(lease.Window(c.Until.Sub(d.now.Wall)), whole), 0)
}

func (d decision) bound(c candidate, why string) verdict {
	l := d.lease(c)
	l.State = lease.Bound
	l.Holder.Netns, l.Holder.BootID = c.Netns, d.now.BootID
	return verdict{lease: l, why: why, at: c.Modified}
}

// held returns a hold. It reports false if its length is 0.
func (d decision) held(c candidate, hold lease.Window, why string) (verdict, bool) {
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
		hold.Round(time.Second), why), at: c.Modified}, hold > 0
}

func (d decision) lease(c candidate) lease.Lease {
	return lease.Lease{
		Pool: d.pool, Address: c.Address, Namespace: c.Namespace, Name: c.Name, UID: c.UID,
		Reservation: c.Reservation,
		Holder:      lease.Holder{ContainerID: c.ContainerID, IfName: c.IfName}, MAC: c.MAC,
		Window: c.Window, Soft: d.soft, BoundAt: d.now,
	}
}

// by returns a text that names the candidate's pod, "" if it has none.
func by(c candidate) string {
	if !c.hasPod() {
		return ""
	}
	return " by pod " + c.Namespace + "/" + c.Name
}

// supersede sets Superseded for the older bound leases of a pod that has several containers, as
// after a forced deletion. The key belongs to the lease of the newest container, and the release of
// an older one starts no firm hold. A reservation name is that of several pods.
func supersede(verdicts []verdict) {
	newest := map[lease.Key]verdict{}
	for _, v := range verdicts {
		key := v.lease.Key()
		n, known := newest[key]
		if v.lease.State == lease.Bound && !key.IsZero() && key.Reservation == "" && (!known || v.at.After(n.at)) {
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
