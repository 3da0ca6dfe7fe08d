package host

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
)

// host is a simulated one with a single namespace.
type kernel struct {
	quick    lease.Liveness
	quickErr error
	addrs    []netip.Addr
	err      error // of AddressesIn
	inUse    map[uint64]bool
	unread   error           // of ProcessNetns
	mounted  map[uint64]bool // of MountedNetns
	all      []Namespace     // of Namespaces
	unlisted error
	asked    []string
}

func (h *kernel) QuickState(lease.Holder, string) (lease.Liveness, error) {
	h.asked = append(h.asked, "QuickState")
	return h.quick, h.quickErr
}

func (h *kernel) AddressesIn(lease.Netns) ([]netip.Addr, error) {
	h.asked = append(h.asked, "AddressesIn")
	return h.addrs, h.err
}

func (h *kernel) ProcessNetns() (map[uint64]bool, error) { return h.inUse, h.unread }
func (h *kernel) MountedNetns() (map[uint64]bool, error) { return h.mounted, nil }
func (h *kernel) Namespaces() ([]Namespace, error)       { return h.all, h.unlisted }

// A hold's last holder has the address only if the namespace is at its path and an interface there
// has the address. What cannot be read is unknown. The namespace is entered last, and once.
func TestLast(t *testing.T) {
	problem := errors.New("permission denied")
	its, other := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	const alive, dead, unknown = lease.Alive, lease.Dead, lease.Unknown
	for name, c := range map[string]struct {
		kernel
		noNetns bool
		want    lease.Liveness
		asked   int // the number of questions to the host
	}{
		"another boot":          {kernel: kernel{quick: dead}, want: dead, asked: 1},
		"no namespace is known": {kernel: kernel{quick: unknown}, noNetns: true, want: dead, asked: 1},
		"the path is gone":      {kernel: kernel{quick: unknown, err: problem}, want: dead, asked: 1},
		"the path cannot be read": {kernel: kernel{quick: unknown, quickErr: problem}, want: unknown,
			asked: 1},
		"an interface has it": {kernel: kernel{quick: alive, addrs: []netip.Addr{other, its}},
			want: alive, asked: 2},
		"an interface has another": {kernel: kernel{quick: alive, addrs: []netip.Addr{other}}, want: dead, asked: 2},
		"the namespace cannot be entered": {kernel: kernel{quick: alive, err: problem}, want: unknown,
			asked: 2},
		"the namespace has ended in between": {kernel: kernel{quick: alive, err: ErrNetnsGone}, want: dead,
			asked: 2},
	} {
		l := lease.Lease{State: lease.Held, Address: its, Holder: lease.Holder{ContainerID: "c1",
			Netns: lease.Netns{Path: "/run/netns/x", Ino: 11}}}
		if c.noNetns {
			l.Holder.Netns = lease.Netns{}
		}
		e := NewEvidence(&c.kernel, "b", BoundIn(nil))
		check.Equal(t, e.Last(l), c.want, name)
		check.Equal(t, len(c.kernel.asked), c.asked, name, "questions:", c.kernel.asked)
		check.Equal(t, e.Last(l), c.want, name, "again")
		entered := slices.DeleteFunc(c.kernel.asked, func(question string) bool { return question != "AddressesIn" })
		check.Between(t, len(entered), 0, 1, name, "how often the namespace was entered")
	}
}

// A bound lease's holder is dead only if neither its path nor any process leads to its namespace,
// and all could be read. With Twice a mount counts as well.
func TestProve(t *testing.T) {
	problem := errors.New("permission denied")
	its, others := map[uint64]bool{11: true}, map[uint64]bool{12: true}
	for name, c := range map[string]struct {
		kernel
		twice bool
		want  lease.Liveness
		why   error
	}{
		"the path leads to it": {kernel: kernel{quick: lease.Alive}, want: lease.Alive},
		"another boot":         {kernel: kernel{quick: lease.Dead}, want: lease.Dead},
		"the path cannot be read": {kernel: kernel{quickErr: problem, inUse: its}, want: lease.Unknown,
			why: problem},
		"nothing and nobody leads there":           {kernel: kernel{inUse: others}, want: lease.Dead},
		"a process has it":                         {kernel: kernel{inUse: its}, want: lease.Alive},
		"a process has it, another cannot be read": {kernel: kernel{inUse: its, unread: problem}, want: lease.Alive},
		"a process cannot be read": {kernel: kernel{inUse: others, unread: problem}, want: lease.Unknown,
			why: problem},
		"it is mounted elsewhere":                {kernel: kernel{mounted: its}, want: lease.Dead},
		"it is mounted elsewhere, for the agent": {kernel: kernel{mounted: its}, twice: true, want: lease.Alive},
	} {
		l := lease.Lease{State: lease.Bound, Holder: lease.Holder{ContainerID: "c1",
			Netns: lease.Netns{Path: "/run/netns/x", Ino: 11}}}
		e := NewEvidence(&c.kernel, "b", BoundIn(nil))
		e.Twice = c.twice
		check.Equal(t, e.Prove(l), c.want, name)
		if why := e.WhyUnknown(l); !errors.Is(why, c.why) || (why != nil) != (c.why != nil) {
			t.Errorf("%s: the reason is %v, want %v", name, why, c.why)
		}
	}
}

// A holder's namespace exists if its path leads to it, or the one with its number has the address.
func TestNamespace(t *testing.T) {
	problem := errors.New("permission denied")
	its, other := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.3")
	in := func(ino uint64, err error, addrs ...netip.Addr) []Namespace {
		n := Namespace{Netns: lease.Netns{Path: "/proc/7/ns/net", Ino: ino}, Err: err}
		for _, a := range addrs {
			n.Addresses = append(n.Addresses, Address{Addr: a})
		}
		return []Namespace{n}
	}
	for name, c := range map[string]struct {
		kernel
		want lease.Liveness
		why  error
	}{
		"the path leads to it":            {kernel: kernel{quick: lease.Alive}, want: lease.Alive},
		"another boot":                    {kernel: kernel{quick: lease.Dead, all: in(11, nil, its)}, want: lease.Dead},
		"the path cannot be read":         {kernel: kernel{quickErr: problem}, want: lease.Unknown, why: problem},
		"there is none":                   {want: lease.Dead},
		"it has the address":              {kernel: kernel{all: in(11, nil, other, its)}, want: lease.Alive},
		"its number has another address":  {kernel: kernel{all: in(11, nil, other)}, want: lease.Dead},
		"another number has the address":  {kernel: kernel{all: in(12, nil, its)}, want: lease.Dead},
		"its addresses cannot be read":    {kernel: kernel{all: in(11, problem)}, want: lease.Unknown, why: problem},
		"another's addresses":             {kernel: kernel{all: in(12, problem)}, want: lease.Dead},
		"a namespace's number":            {kernel: kernel{all: in(0, problem)}, want: lease.Unknown, why: problem},
		"the namespaces cannot be listed": {kernel: kernel{unlisted: problem}, want: lease.Unknown, why: problem},
	} {
		l := lease.Lease{State: lease.Bound, Address: its, Holder: lease.Holder{ContainerID: "c1",
			Netns: lease.Netns{Path: "/run/netns/x", Ino: 11}}}
		e := NewEvidence(&c.kernel, "b", BoundIn(nil))
		if got, why := e.Namespace(l); got != c.want || !errors.Is(why, c.why) || (why != nil) != (c.why != nil) {
			t.Errorf("%s: %v, %v; want %v, %v", name, got, why, c.want, c.why)
		}
	}
}
