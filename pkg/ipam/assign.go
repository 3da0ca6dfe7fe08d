package ipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/importer"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Assign binds one address of each range set to a container (ADD), or none at all. It prefers the
// addresses that the container is bound to already, then those held for the pod. A repeated call
// for the same container returns the same addresses.
//
// Errors: ErrNetns, ErrAddressInUse, ErrUnavailable, ErrRequest, ErrExhausted, and those of the
// store.
func (s *Service) Assign(ctx context.Context, req Request) (Result, error) {
	ctx = files.WithMaxWait(ctx) // of both attempts together
	var a *assignment
	var refused error
	var named []netip.Addr
	searched := false
	assign := func(c *operation.Call) error {
		a, refused = nil, nil
		netns, err := s.Node.Host.Netns(req.NetnsPath)
		if err != nil && req.Pod != (Pod{}) {
			return fmt.Errorf("%w: %w", ErrNetns, err)
		}
		if err = c.MayGiveAny(req.Pool); err == nil {
			err = prepare(c, req)
		}
		if err == nil {
			err = c.ImportFiles(req.Pool, named, nil)
		}
		if err != nil {
			return err
		}
		a = &assignment{call: c, req: req, searched: searched, holder: lease.Holder{ContainerID: req.ContainerID,
			IfName: req.IfName, Netns: netns, BootID: c.Now.BootID}}
		if err := a.setKey(); err != nil {
			return err
		}
		if err = a.decide(); isRefusal(err) || errors.Is(err, errNotSearched) {
			refused, err = err, nil // the transaction is committed nevertheless
		} else if err == nil {
			err = a.write()
		}
		return err
	}
	err := s.Node.Update(ctx, req.scope(), assign)
	if err == nil && errors.Is(refused, errNotSearched) {
		who := lease.Attachment{ContainerID: req.ContainerID, IfName: req.IfName}
		named, searched = s.Node.FilesOf(req.Pool, operation.Names(who)), true
		err = s.Node.Update(ctx, req.scope(), assign)
	}
	if err = cmp.Or(err, refused); err != nil {
		return Result{}, err
	}
	s.returned(a)
	return a.result(), nil
}

// errNotSearched is returned by decide if host-local may have given the container an address that
// has no lease. What was imported is then committed, and its files are searched without a lock,
// because there may be thousands.
var errNotSearched = errors.New("host-local's files are not searched yet")

// expireBatch is the largest number of expired holds that one ADD ends. It is more than an ADD can
// add, so that expired holds do not accumulate.
const expireBatch = 16

// prepare does what every ADD does before it chooses an address: it handles a new boot, records the
// plugin's namespaces, the pool and its range sets, and ends a batch of expired holds.
func prepare(c *operation.Call, req Request) error {
	c.SetUsed(req.Pool)
	if err := c.NewBoot(req.Pool); err != nil {
		return err
	}
	return cmp.Or(
		c.RecordNamespaces(),
		c.Tx.SetRanges(req.Pool, req.Sets),
		c.Tx.SetLink(req.Pool, req.Link),
		c.Tx.SetCacheDirs(req.Pool, req.Options.CNICacheDirs),
		c.Collect(c.Tx.Ending(req.Pool, expireBatch)),
	)
}

// assignment is the state of one ADD.
type assignment struct {
	call   *operation.Call
	req    Request
	key    lease.Key
	holder lease.Holder
	window lease.Window

	searched bool // the addresses that host-local's files show the container to have, have leases

	// stored is the record of the agent from which the key's reservation name is. If there is none,
	// it has only the window of a named lease that the pod has.
	stored store.NamedPod

	mine   []lease.Lease // bound to this attachment
	former []lease.Lease // of the key, bound to other attachments or held
	picks  []pick        // one for each range set

	superseded []lease.Lease // former leases that lose the key, because their holder is alive
	outlived   string        // the reason, for the journal and a warning

	limited string // why the window is shorter than requested; "" if it is not
	notes   []string
}

// pick is the decision for one range set.
type pick struct {
	set    pool.Set
	old    lease.Lease // the former lease of the address; State None if it had none
	next   lease.Lease
	event  store.Event // "" if nothing changes, EventBound if old is not the pod's, and yields
	reason string
	yields string // why old yields although it is a hold; "" if it is a cool-down
}

// decide chooses the addresses and sets picks, without writing them. Its error may be a refusal.
func (a *assignment) decide() error {
	bound, err := a.call.Tx.ByHolder(a.req.ContainerID, a.req.IfName)
	if err != nil {
		return err
	}
	for _, l := range bound {
		if l.Pool != a.req.Pool {
			continue
		}
		l, err := a.call.CompareOwn(l)
		if err != nil && !errors.Is(err, importer.ErrUnreadable) {
			return err
		}
		if !l.Holder.Is(a.holder) {
			continue
		}
		if err := a.refuseOther(l); err != nil {
			return err
		}
		a.mine = append(a.mine, l)
	}
	if a.hasAll() {
		return a.chooseAll() // a repeated call does not change other leases of the key
	}
	if !a.searched && (slices.ContainsFunc(a.mine, lease.Lease.IsImported) || a.call.IsCached(a.holder.Attachment())) {
		return errNotSearched
	}
	if err := a.readFormer(); err != nil {
		return err
	}
	a.setWindow()
	wait := a.waitForFormer
	if a.isNamed() {
		wait = a.waitForName
	}
	if err = wait(); err == nil {
		err = a.chooseAll()
	}
	if isRefusal(err) {
		err = cmp.Or(a.keepHolds(), err)
	}
	return err
}

// isRefusal reports whether an error is a decision about the call, after which what was done before
// stays. Any other error rolls the transaction back.
func isRefusal(err error) bool {
	return errors.Is(err, ErrExhausted) || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrRequest) ||
		errors.Is(err, ErrAddressInUse)
}

// keepHolds extends the holds that the pod will get when its call is no longer refused: each lasts
// for busyTimeout at least, because the pod has come back in time.
func (a *assignment) keepHolds() error {
	picked := func(l lease.Lease) bool {
		return slices.ContainsFunc(a.picks, func(p pick) bool { return p.old.Address == l.Address })
	}
	for _, l := range a.former {
		if a.isNamed() && l.Name != a.req.Pod.Name && !picked(l) {
			continue
		}
		l, err := a.call.Tx.Get(l.Pool, l.Address) // refuse may have changed it
		if err == nil {
			_, _, err = a.call.Change(l, lease.Defer{Rest: a.req.Options.BusyTimeout})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// refuseOther returns ErrAddressInUse if the container has the address in another network namespace
// than that of the call, and that namespace is not proven to be gone. Otherwise the call is a
// repeated one: runtimes such as nerdctl start a container again with its id, in a new namespace,
// and send no DEL. Of a container that only host-local's file names, the namespace is the one in
// which an interface has the address.
func (a *assignment) refuseOther(l lease.Lease) error {
	if l.Holder.Netns.Ino == 0 {
		l.Holder.Netns = a.call.Evidence.NamespaceOf(l.Address, a.holder.Netns)
	}
	old := l.Holder.Netns
	if old.Ino == 0 || old.Same(a.holder.Netns) {
		return nil
	}
	known := "which is still there"
	switch life, err := a.call.Evidence.Namespace(l); {
	case life == lease.Dead:
		return nil
	case err != nil:
		known = fmt.Sprintf("which is not proven to be gone (%v)", err)
	}
	return fmt.Errorf("%w: %s belongs to container %s in network namespace %s, %s; a DEL of that container ends it",
		ErrAddressInUse, l.Address, l.Holder.ContainerID, old.Path, known)
}

// hasAll reports whether the attachment already has an address of each range set, and all requested
// ones, and they are known to be the pod's.
func (a *assignment) hasAll() bool {
	mine := a.bySet(a.mine)
	requested, _ := a.requestedBySet()
	for i := range a.req.Sets {
		if l, found := own(mine[i], requested[i]); !found || !l.HasPod() && !a.key.IsZero() {
			return false
		}
	}
	return true
}

// bySet returns the leases in each range set, by its index. It ignores those outside of all sets.
func (a *assignment) bySet(leases []lease.Lease) map[int][]lease.Lease {
	out := map[int][]lease.Lease{}
	for _, l := range leases {
		if i := pool.SetOf(a.req.Sets, l.Address); i >= 0 {
			out[i] = append(out[i], l)
		}
	}
	return out
}

// readFormer sets former, the retained leases first and of those the one that was bound last, after
// it has compared the leases of the key with host-local's files. Two leases in one range set have
// the key if host-local has served an ADD of the pod while the former address was held. Cool-downs
// for other pods of the name are not in former: there are many if a pod is recreated repeatedly.
func (a *assignment) readFormer() error {
	err := a.moveToName()
	if err != nil {
		return err
	}
	if a.former, err = a.call.Tx.ByKey(a.key); err == nil && len(a.former) == 0 {
		if err = a.call.CopyFormer(a.key); err == nil {
			a.former, err = a.call.Tx.ByKey(a.key)
		}
	}
	if err != nil {
		return err
	}
	own := a.former
	if a.isNamed() { // the leases of other pods are for the agent to compare, because there may be many
		own = slices.DeleteFunc(slices.Clone(own), func(l lease.Lease) bool { return l.Name != a.req.Pod.Name })
	}
	if err := a.call.CompareFiles(own); err != nil {
		return err
	}
	if len(own) > 0 {
		if a.former, err = a.call.Tx.ByKey(a.key); err != nil {
			return err
		}
	}
	a.former = slices.DeleteFunc(a.former, func(l lease.Lease) bool {
		return l.State == lease.Bound && l.Holder.Is(a.holder) ||
			l.State == lease.Held && !l.IsHold && l.UID != a.req.Pod.UID
	})
	slices.SortStableFunc(a.former, func(x, y lease.Lease) int {
		return cmp.Or(a.rank(x)-a.rank(y), a.lastReleasedFirst(x, y), lastBoundFirst(x, y))
	})
	return a.releaseDeadUnretained()
}

// lastBoundFirst orders leases by the time at which they were bound, the latest first.
func lastBoundFirst(x, y lease.Lease) int {
	switch {
	case x.BoundAt.IsAfter(y.BoundAt):
		return -1
	case y.BoundAt.IsAfter(x.BoundAt):
		return 1
	}
	return y.BoundAt.Wall.Compare(x.BoundAt.Wall)
}

// releaseDeadUnretained releases the former leases that are bound without a window and whose holder
// is dead. They become cool-downs for the same pod, or end.
func (a *assignment) releaseDeadUnretained() error {
	for i, l := range a.former {
		if l.State == lease.Bound && l.Window == 0 {
			var err error
			if a.former[i], err = a.call.CollectAt(l.Place()); err != nil {
				return err
			}
		}
	}
	a.former = slices.DeleteFunc(a.former, func(l lease.Lease) bool { return l.State == lease.None })
	return nil
}

// setWindow sets the window of the new leases, limited by the policies, and the reason if it was
// limited.
func (a *assignment) setWindow() {
	a.window = a.requestedWindow()
	if a.key.IsZero() {
		a.window = 0
	}
	a.window, a.limited = a.call.Tx.Limits().Of(a.key.Namespace).Window(a.window, a.key.Namespace)
	if limit := a.req.Options.MaxWindow; limit > 0 && a.window > limit {
		a.limited = fmt.Sprintf("the window of %s is cut to maxWindow %s", a.window, limit)
		a.window = limit
	}
	if a.req.Options.MaxHeldShare == 0 && a.window > 0 {
		a.limited = "maxHeldShare is 0: nothing is held"
		a.window = 0
	}
	if a.limited != "" {
		a.notes = append(a.notes, a.limited)
	}
}

// requestedWindow returns the window of the pod's annotation. If the runtime passed no annotations,
// it is the one that the agent has stored for the pod, or that of a former lease, or the configured
// default.
func (a *assignment) requestedWindow() lease.Window {
	if a.req.Retention.Known {
		return a.req.Retention.Window
	}
	if a.stored.Window > 0 {
		return a.stored.Window
	}
	for _, l := range a.former {
		if l.IsRetained() {
			return l.Window
		}
	}
	return a.req.Options.DefaultWindow
}

// waitForFormer refuses the call while the pod's old sandbox may still have the addresses, until
// busyTimeout after the first refusal of this pod. After that the policy onBusy determines whether
// the pod gets other addresses or is still refused.
func (a *assignment) waitForFormer() error {
	var busy []lease.Lease
	over := true
	for _, l := range a.former {
		if _, err := lease.Apply(l, a.bind(l, l.Address, l.Set), a.call.Now); errors.Is(err, lease.ErrHolderAlive) &&
			l.IsRetained() {
			busy = append(busy, l)
			_, err := lease.Apply(l, a.supersede(), a.call.Now)
			over = over && err == nil
		}
	}
	switch {
	case len(busy) == 0:
		return nil
	case over && a.req.Options.OnBusy == policy.New:
		a.supersedeAll(busy)
		return nil
	}
	return a.refuse(busy)
}

func (a *assignment) supersede() lease.Supersede {
	return lease.Supersede{Newcomer: a.req.Pod.UID, Timeout: a.req.Options.BusyTimeout}
}

// supersedeAll has all former leases lose the key, so that the pod gets other addresses. write
// applies that when it binds the new leases.
func (a *assignment) supersedeAll(busy []lease.Lease) {
	a.outlived = fmt.Sprintf("container %s outlived busyTimeout %s", busy[0].Holder.ContainerID,
		a.req.Options.BusyTimeout)
	for _, l := range a.former {
		if l.IsRetained() {
			a.superseded = append(a.superseded, l)
		}
	}
	a.former = nil
	a.notes = append(a.notes, fmt.Sprintf("pod %s/%s gets other addresses than before: %s", a.key.Namespace, a.key.Name,
		a.outlived))
}

// refuse records the first refusal of this pod in the busy leases, and returns ErrAddressInUse with
// the container that still has the address.
func (a *assignment) refuse(busy []lease.Lease) error {
	l := busy[0]
	for _, l := range busy {
		e := lease.Refuse{Newcomer: a.req.Pod.UID, Timeout: a.req.Options.BusyTimeout}
		next, err := lease.Apply(l, e, a.call.Now)
		if err != nil {
			return err
		}
		if next.RefusedAt == l.RefusedAt {
			continue // an earlier refusal is recorded
		}
		why := "for container " + a.req.ContainerID
		if err := a.call.Record(l, next, store.EventRefused, a.call.Now, why); err != nil {
			return err
		}
	}
	then := "another address is assigned"
	if a.req.Options.OnBusy == policy.Refuse {
		then = "it is still refused (onBusy: refuse)"
	}
	known := fmt.Sprintf("whose network namespace %s is still there", l.Holder.Netns.Path)
	if why := a.call.Evidence.WhyUnknown(l); why != nil {
		known = fmt.Sprintf("which is not proven to be gone (%v)", why)
	}
	return fmt.Errorf("%w: %s of pod %s/%s is held by container %s, %s; after busyTimeout (%s) %s",
		ErrAddressInUse, l.Address, l.Namespace, l.Name, l.Holder.ContainerID, known,
		a.req.Options.BusyTimeout, then)
}

// bind returns the event that binds an address to the container of the call. l is the present lease
// of the address, set the ID of its range set.
func (a *assignment) bind(l lease.Lease, addr netip.Addr, set string) lease.Bind {
	e := lease.Bind{Lease: lease.Lease{
		Pool: a.req.Pool, Address: addr, Set: set,
		Namespace: a.req.Pod.Namespace, Name: a.req.Pod.Name, UID: a.req.Pod.UID, Holder: a.holder,
		ReserveAs: a.key.ReserveAs,
		Window:    a.window, MaxWindow: a.req.Options.MaxWindow, CoolDown: a.req.Options.CoolDown,
	}}
	switch l.State {
	case lease.None:
		e.ID = operation.NewID()
	case lease.Bound:
		if !l.Holder.Is(a.holder) {
			e.LastHolder = a.call.Evidence.Prove(l)
		}
	case lease.Held:
		e.LastHolder = a.call.Evidence.Last(l)
	}
	return e
}

// heldLimit returns the maximum number of holds in a set, 0 for no limit.
func heldLimit(set pool.Set, share float64) int {
	switch {
	case share >= 1:
		return 0
	case share == 0:
		return lease.NoneHeld
	}
	n := math.Floor(share * float64(set.Size()))
	return int(max(1, min(n, math.MaxInt32)))
}

// write writes the result of decide.
func (a *assignment) write() error {
	kept := map[netip.Addr]bool{}
	for _, p := range a.picks {
		kept[p.next.Address] = true
	}
	usable := func(addr netip.Addr) bool { return pool.Usable(a.req.Sets, addr) }
	for _, l := range a.former {
		// The other leases of a reservation name are those of other pods, or for other pods.
		others := a.isNamed() && (l.State == lease.Bound || usable(l.Address))
		if !kept[l.Address] && l.IsRetained() && !others {
			if err := a.drop(l, usable(l.Address)); err != nil {
				return err
			}
		}
	}
	for _, l := range a.superseded {
		e := lease.Supersede{Newcomer: a.req.Pod.UID} // waitForFormer has checked the timeout
		if _, err := a.call.End(l, e, a.call.Now, a.outlived); err != nil {
			return err
		}
	}
	for _, p := range a.picks {
		if err := a.writePick(p); err != nil {
			return err
		}
	}
	return a.call.Tx.DeleteNamedPod(a.req.Pod.Namespace, a.req.Pod.UID) // the leases have the name now
}

// drop ends the retention of a former lease that was not picked, because the pod requested another
// address or has had one since, or because the configured ranges no longer contain the address
// (usable is false).
func (a *assignment) drop(l lease.Lease, usable bool) error {
	reason := "the ranges no longer contain it"
	switch {
	case usable && len(a.req.Requested) > 0:
		reason = "the pod asked for another address"
	case usable:
		reason = "the pod has had another address since"
	}
	if err := a.call.MayGive(l); err != nil {
		reason = err.Error()
	}
	a.notes = append(a.notes, fmt.Sprintf("pod %s/%s loses %s: %s", l.Namespace, l.Name, l.Address, reason))
	e := lease.Revoke{LastHolder: a.call.Evidence.LifeOf(l), KeepBound: true}
	_, err := a.call.End(l, e, a.call.Now, reason)
	return err
}

func (a *assignment) writePick(p pick) error {
	if p.event == store.EventBound && p.old.State == lease.Held {
		if err := a.endYielding(p.old, p.yields); err != nil {
			return err
		}
		p.old = lease.Lease{}
	}
	err := a.call.Put(p.old, p.next)
	if err != nil || p.event == "" {
		return err
	}
	err = a.call.Log(p.next, p.event, p.reason)
	if a.limited != "" {
		err = cmp.Or(err, a.call.Log(p.next, store.EventLimited, a.limited))
	}
	if p.event == store.EventBound { // the cursor moves only to an address that nobody had
		err = cmp.Or(err, a.warnOfLowPool(p), a.call.Tx.SetCursor(a.req.Pool, p.next.Set, p.next.Address))
	}
	return err
}

// endYielding ends the hold or cool-down of another pod. why is the reason if it is no cool-down,
// otherwise "".
func (a *assignment) endYielding(l lease.Lease, why string) error {
	reason := "to container " + a.req.ContainerID
	if a.req.Pod != (Pod{}) {
		reason = "to pod " + a.req.Pod.Namespace + "/" + a.req.Pod.Name
	}
	if why != "" {
		reason += ": " + why
		if err := a.call.Tx.Count("leases/yielded", 1); err != nil {
			return err
		}
	}
	_, err := a.call.End(l, a.yield(l, why != ""), a.call.Now, reason)
	return err
}

// warnOfLowPool adds a journal entry if the new address is the one after which less than a tenth of
// its range set is free. Cool-downs count as free, because they yield.
func (a *assignment) warnOfLowPool(p pick) error {
	counts, size := a.call.Tx.Counts(a.req.Pool, p.next.Set), p.set.Size()
	used := min(counts.Bound+counts.Held, size) // at least 1, the new address
	isLow := func(used uint64) bool { return size-used <= (size-1)/10 }
	if !isLow(used) || isLow(used-1) {
		return nil
	}
	return a.call.Log(p.next, store.EventPoolLow,
		fmt.Sprintf("%d of %d addresses of range set %s are left", size-used, size, p.set))
}

func (a *assignment) result() Result {
	r := Result{Notes: a.notes, Existing: len(a.mine) > 0}
	for _, p := range a.picks {
		rng, _ := p.set.RangeFor(p.next.Address)
		r.Addresses = append(r.Addresses, Assigned{
			Address: netip.PrefixFrom(p.next.Address, rng.Subnet.Bits()),
			Gateway: rng.Gateway,
		})
	}
	return r
}
