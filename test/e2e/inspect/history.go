package inspect

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"math"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
	"k8s.io/apimachinery/pkg/util/wait"
)

// An AddressHistory is what was observed in the network namespaces of nodes: which sandbox had what
// address from when to when, and which pod came with which address. Accepted has porcupine, a
// checker of linearizability that others wrote, judge it.
//
// A sandbox is a network namespace, by its path. It got an address at some time between the last
// look at it without the address and the first look with it, and lost it between the last look with
// it and the first look without it. These are the intervals of the operations. So an address that
// was in two sandboxes is found if a whole look at one of them with it is followed by a look at the
// other one with it: Resolution says how long such a duplicate may have lasted at most unseen.
type AddressHistory struct {
	mu    sync.Mutex
	began time.Time
	with  map[holding]look
	ops   []Observation     // of kinds Gets and Loses
	since time.Duration     // the begin of the pass before
	pods  map[string]string // by sandbox, those that are known
	roots map[string]bool   // nodes with sandboxes of pods that are not known yet
	worst time.Duration     // from the begin of a pass to the end of the next one
	clock func() time.Time
}

// An Observation is one operation of a history.
type Observation struct {
	Kind    string // gets, loses: a sandbox and an address. comes: a pod with an address
	Address netip.Addr
	Sandbox string        // of gets and loses
	Pod     string        // of comes, as namespace/name
	Call    time.Duration // since the begin of the history
	Return  time.Duration
}

// The kinds of an Observation.
const (
	Gets  = "gets"
	Loses = "loses"
	Comes = "comes"
)

type holding struct {
	root, sandbox string
	address       netip.Addr
}

// A look at a namespace.
type look struct{ begin, end time.Duration }

// NewAddressHistory returns a history that begins now.
func NewAddressHistory(clock func() time.Time) *AddressHistory {
	return &AddressHistory{began: clock(), clock: clock, with: map[holding]look{}, pods: map[string]string{},
		roots: map[string]bool{}}
}

func (h *AddressHistory) now() time.Duration { return h.clock().Sub(h.began) }

// observe reads all namespaces of the nodes once. read returns the addresses of one, and
// fs.ErrNotExist if it is gone. One that cannot be read counts as unchanged.
func (h *AddressHistory) observe(roots []string, list func(root string) []string,
	read func(sandbox string) ([]netip.Addr, error)) {
	begin := h.now()
	seen := map[holding]look{}
	unread := map[string]bool{}
	for _, root := range roots {
		for _, sandbox := range list(root) {
			at := look{begin: h.now()}
			found, err := read(sandbox)
			at.end = h.now()
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				unread[sandbox] = true
			}
			for _, a := range found {
				seen[holding{root, sandbox, a}] = at
			}
		}
	}
	h.record(begin, seen, unread)
}

// record adds the operations of one pass.
func (h *AddressHistory) record(begin time.Duration, seen map[holding]look, unread map[string]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	end := h.now()
	for at, l := range seen {
		if _, had := h.with[at]; !had {
			h.ops = append(h.ops, Observation{Kind: Gets, Address: at.address, Sandbox: at.sandbox, Call: h.since,
				Return: l.end})
			if h.pods[at.sandbox] == "" {
				h.roots[at.root] = true
			}
		}
		h.with[at] = l
	}
	for at, last := range h.with {
		if _, has := seen[at]; !has && !unread[at.sandbox] {
			h.ops = append(h.ops, Observation{Kind: Loses, Address: at.address, Sandbox: at.sandbox, Call: last.begin,
				Return: end})
			delete(h.with, at)
		}
	}
	h.worst = max(h.worst, end-h.since)
	h.since = begin
}

// Name looks up, every two seconds until ctx is done, to which pods of a namespace new sandboxes
// belong. Sandboxes of other namespaces, and those that end before that, stay unknown.
func (h *AddressHistory) Name(ctx context.Context, namespace string) {
	wait.UntilWithContext(ctx, func(ctx context.Context) { h.name(ctx, namespace) }, 2*time.Second)
}

func (h *AddressHistory) name(ctx context.Context, namespace string) {
	h.mu.Lock()
	roots := maps.Clone(h.roots)
	clear(h.roots)
	h.mu.Unlock()
	for root := range roots {
		found, err := Sandboxes(ctx, root, namespace)
		h.mu.Lock()
		if err != nil {
			h.roots[root] = true
		}
		for _, s := range found {
			h.pods[s.NetNS] = s.Namespace + "/" + s.Pod
		}
		h.mu.Unlock()
	}
}

// Resolution is the longest time that a duplicate can have lasted unseen.
func (h *AddressHistory) Resolution() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.worst
}

// Observations returns all operations in the order of their calls. A pod that is known comes with
// what its sandbox gets. What a sandbox had in the last look it may lose at any time after that.
func (h *AddressHistory) Observations() []Observation {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Clone(h.ops)
	for _, o := range h.ops {
		if pod := h.pods[o.Sandbox]; o.Kind == Gets && pod != "" {
			all = append(all, Observation{Kind: Comes, Address: o.Address, Pod: pod, Call: o.Call, Return: o.Return})
		}
	}
	for at, last := range h.with {
		all = append(all, Observation{Kind: Loses, Address: at.address, Sandbox: at.sandbox, Call: last.begin,
			Return: math.MaxInt64})
	}
	return slices.SortedFunc(slices.Values(all), func(a, b Observation) int { return cmp.Compare(a.Call, b.Call) })
}

// Accepted reports whether porcupine accepts a history: each address is a register with one holder,
// and each pod that retained reports is a register with the address with which it always comes. It
// returns the registers that it rejects.
func Accepted(ops []Observation, retained func(pod string) bool) (rejected []string) {
	registers := map[string][]porcupine.Operation{}
	for _, o := range ops {
		register := o.Address.String()
		if o.Kind == Comes {
			register = o.Pod
			if !retained(o.Pod) {
				continue
			}
			if o.Address.Is6() {
				register += " IPv6"
			}
		}
		registers[register] = append(registers[register], porcupine.Operation{ClientId: len(registers[register]),
			Input: o, Call: o.Call.Nanoseconds(), Return: o.Return.Nanoseconds()})
	}
	model := porcupine.Model{Init: func() any { return "" }, Step: func(state, input, _ any) (bool, any) {
		return step(state.(string), input.(Observation))
	}}
	for _, register := range slices.Sorted(maps.Keys(registers)) {
		if !porcupine.CheckOperations(model, registers[register]) {
			rejected = append(rejected, register)
		}
	}
	return rejected
}

// step applies an operation to a register: of an address, the state is its holder; of a pod, its
// address.
func step(state string, o Observation) (bool, any) {
	switch o.Kind {
	case Gets:
		return state == "", o.Sandbox
	case Loses:
		return state == o.Sandbox, ""
	}
	return state == "" || state == o.Address.String(), o.Address.String()
}
