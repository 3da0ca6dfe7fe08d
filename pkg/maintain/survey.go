package maintain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/evidence"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/sandbox"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// Looking after a node's leases is three steps: Survey looks, Plan decides, Act
// does it. Nothing that Survey or Plan do locks the store for longer than a few
// leases take to read, and Act looks again before each step.

// Survey is one look at a node: what its store says, and what is left of the
// holders.
type Survey struct {
	Now     lease.Instant
	Unused  bool // nothing was ever stored: there is nothing to look after
	Leases  []lease.Lease
	Damaged []lease.Lease // pool and address of those whose record cannot be read
	// Life of the holders of bound leases, proven.
	Life map[lease.Holder]lease.Liveness
	// Last tells of holds that are over whether their last holders still have the
	// addresses.
	Last    map[Ref]lease.Liveness
	Spooled []store.Spooled
	// Unmirrored are bound leases without the file that host-local knows them by.
	Unmirrored []lease.Lease
	// Doubtful is how many leases stay bound though their sandboxes are not to be
	// found: that they are gone is not proven. Doubt says why not; nil where there
	// are none.
	Doubtful int
	Doubt    error
	// Unproven says why the view is not proven to be the host's; nil if it is.
	Unproven error
	// Unsafe says why nothing of this may be acted on; nil if it may.
	Unsafe error
}

// Survey looks at the store and at the host, in this order: a lease that is
// bound meanwhile is not in it.
func (s *Service) Survey(ctx context.Context) (Survey, error) {
	v := Survey{Life: map[lease.Holder]lease.Liveness{}, Last: map[Ref]lease.Liveness{}}
	var word string
	err := s.Store.View(ctx, func(tx *store.Tx) error {
		word = tx.NamespaceIDs()
		return nil
	})
	if store.IsEmpty(err) {
		v.Now, v.Unused = s.Clock(), true
		v.Unproven = s.Host.ProveView("", v.Now.BootID, nil)
		return v, nil
	}
	if err != nil {
		return v, err
	}
	view, err := s.List(ctx, func(lease.Lease) bool { return true })
	if err != nil {
		return v, err
	}
	v.Leases, v.Damaged, v.Now = view.Leases, view.damaged, view.Now
	if v.Spooled, err = s.Store.Spooled(v.Now.BootID); err != nil {
		return v, err
	}
	v.Unproven = s.Host.ProveView(word, v.Now.BootID, evidence.BoundIn(v.Leases))
	if v.Unproven != nil && len(v.Leases)+len(v.Damaged) > 0 {
		// Not even the boot id is the node's for certain: a sandbox with a kernel
		// of its own has its own.
		v.Unsafe = fmt.Errorf("%w: %w", transact.ErrNoHostView, v.Unproven)
		return v, nil
	}
	v.doubt(s.examineHolders(&v))
	v.canary(v.Unproven == nil && sandbox.IsOfBoot(word, v.Now.BootID))
	v.Unmirrored = unmirrored(v.Leases)
	return v, nil
}

// examineHolders fills Life and Last. It returns what says why the life of a Bound
// lease's holder is unknown.
func (s *Service) examineHolders(v *Survey) (why func(lease.Lease) error) {
	e := evidence.New(s.Host, v.Now.BootID, evidence.BoundIn(v.Leases))
	e.Twice = true
	for _, l := range v.Leases {
		switch {
		case l.State == lease.Bound:
			v.Life[l.Holder] = e.Prove(l)
		case l.Lapsed(v.Now):
			v.Last[RefTo(l)] = e.Last(l)
		}
	}
	return e.Doubt
}

// here are the leases that were bound in this boot to a namespace that is known,
// by the life of their holders.
func (v Survey) here() map[lease.Liveness][]lease.Lease {
	out := map[lease.Liveness][]lease.Lease{}
	for _, l := range v.Leases {
		if l.State == lease.Bound && l.Holder.BootID == v.Now.BootID && l.Holder.Netns.Ino != 0 {
			life := v.Life[l.Holder]
			out[life] = append(out[life], l)
		}
	}
	return out
}

// doubt counts those of whom it cannot tell. One process that cannot be asked, at
// every look, is enough for no death ever to be proven.
func (v *Survey) doubt(why func(lease.Lease) error) {
	unknown := v.here()[lease.Unknown]
	if len(unknown) == 0 {
		return
	}
	v.Doubtful = len(unknown)
	v.Doubt = fmt.Errorf("of %d leases it cannot be told whether their sandboxes are gone: %w", v.Doubtful,
		why(unknown[0]))
}

// canary: if of the leases that were bound in this boot none is alive, then it may be not they that
// are dead, but we that are blind (docs/design.md, "Whose view it is"). Where the plugin has said
// in this boot that it sees what we see, and nothing was hidden from us, only their death is
// doubted: a drained node may have a lost DEL, and its holds come to their end all the same.
func (v *Survey) canary(same bool) {
	here := v.here()
	dead := here[lease.Dead]
	if len(here[lease.Alive]) > 0 || len(dead)+v.Doubtful == 0 {
		return
	}
	none := fmt.Sprintf("of %d leases that were bound in this boot not one looks alive", len(dead)+v.Doubtful)
	switch {
	case v.Doubt != nil:
		v.Unsafe = fmt.Errorf("%w: %s; %w", transact.ErrNoHostView, none, v.Doubt)
	case !same:
		v.Unsafe = fmt.Errorf("%w: %s", transact.ErrNoHostView, none)
	default:
		for _, l := range dead {
			v.Life[l.Holder] = lease.Unknown
		}
		v.Doubtful, v.Doubt = len(dead), errors.New(none+": they stay until another sandbox lives")
	}
}

// unmirrored lists each directory once, and takes no lock: Act looks again.
func unmirrored(leases []lease.Lease) []lease.Lease {
	var out []lease.Lease
	files := map[lease.Pool]map[string]bool{}
	for _, l := range leases {
		names, listed := files[l.Pool]
		if !listed {
			names = hostlocal.FileNames(l.Pool)
			files[l.Pool] = names
		}
		if names != nil && l.State == lease.Bound && !names[l.Address.String()] {
			out = append(out, l)
		}
	}
	return out
}

// ActionKind is what an Action does.
type ActionKind string

const (
	// Repair: a record is damaged, and is learnt again from what the host shows.
	Repair ActionKind = "repair"
	// Replay: a DEL that the store could not take when it came.
	Replay ActionKind = "replay"
	// Release: the holder is proven dead, and its window begins.
	Release ActionKind = "release"
	// Expire: a hold is over.
	Expire ActionKind = "expire"
	// Rebase: a hold of an earlier boot counts by this boot's clock from now on.
	Rebase ActionKind = "rebase"
	// Mirror: host-local's file is missing. host-local has processed its DEL,
	// or the file is made again.
	Mirror ActionKind = "mirror"
)

// Action is one step that is due, and why.
type Action struct {
	Do     ActionKind
	Lease  lease.Lease    // as it was seen
	Life   lease.Liveness // of its holder, as it was proven
	Reason string
}

// Plan says what is to be done after a survey; nothing after a blind one. It
// looks at nothing else.
func Plan(v Survey) []Action {
	if v.Unsafe != nil {
		return nil
	}
	out := v.replays()
	for _, l := range v.Leases {
		switch {
		case l.State == lease.Bound && v.Life[l.Holder] == lease.Dead:
			out = append(out, Action{Do: Release, Lease: l, Life: lease.Dead, Reason: v.deathReason(l)})
		case l.Lapsed(v.Now) && v.Last[RefTo(l)] == lease.Dead:
			over := l.ReleasedAt.Wall.Add(l.Hold).UTC().Format(time.RFC3339)
			out = append(out, Action{Do: Expire, Lease: l, Reason: "its time was over at " + over})
		case l.State == lease.Held:
			if next, err := lease.Apply(l, lease.Rebase{}, v.Now); err == nil {
				rest := lease.FormatWindow(next.Remaining(v.Now).Round(time.Second))
				out = append(out, Action{Do: Rebase, Lease: l,
					Reason: "it was released in an earlier boot; left of it: " + rest})
			}
		}
	}
	for _, l := range v.Unmirrored {
		if life := v.Life[l.Holder]; life != lease.Dead {
			out = append(out, Action{Do: Mirror, Lease: l, Life: life, Reason: "host-local's file of it is gone"})
		}
	}
	for _, l := range v.Damaged { // last: the first step that fails is the last that is taken
		out = append(out, Action{Do: Repair, Lease: l, Reason: "its record is damaged"})
	}
	return out
}

func (v Survey) deathReason(l lease.Lease) string {
	if l.Holder.BootID != v.Now.BootID {
		return "the node has booted since"
	}
	return "its sandbox is gone: " + l.Holder.Netns.Path +
		" leads to it no longer, and no process or mount of the node has it"
}

func (v Survey) replays() []Action {
	var out []Action
	for _, r := range v.Spooled {
		who := lease.Holder{ContainerID: r.ContainerID, IfName: r.IfName}
		reason := "the DEL of " + r.At.Wall.UTC().Format(time.RFC3339) + " was spooled"
		met := false
		for _, l := range v.Leases {
			if l.State == lease.Bound && l.Holder.Is(who) && !l.BoundAt.IsAfter(r.At) {
				met = true
				out = append(out, Action{Do: Replay, Lease: l, Reason: reason})
			}
		}
		if !met {
			out = append(out, Action{Do: Replay, Lease: lease.Lease{Holder: who}, Reason: reason +
				", and nothing is bound to the container"})
		}
	}
	return out
}

// NextEnd is how long it takes until the next hold is over; lease.Forever where
// none will be. Those that are over already do not count.
func (v Survey) NextEnd() time.Duration {
	next := lease.Forever
	for _, l := range v.Leases {
		if rest := l.Remaining(v.Now); l.State == lease.Held && rest > 0 {
			next = min(next, rest)
		}
	}
	return next
}
