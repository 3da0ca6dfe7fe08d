package explore

import (
	"net/netip"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/pool"
)

// Upper bounds of any world.
const (
	maxPods  = 3
	maxBoxes = 6
	maxSets  = 2
	maxNets  = 2
)

// The lengths of all worlds, as multiples of a step of the clock. An event takes a moment: nothing
// happens at the same time as something else. Moments never add up to a step.
const (
	moment = 10 * time.Second
	step   = 6000 * time.Second
	window = 2 * step // of the pods that ask for one
	soft   = step     // policy softHold
	busy   = step     // policy busyTimeout
)

// config is what a world consists of, and which events it has.
type config struct {
	name  string
	about string

	pods  []podConfig
	lives int // sandboxes of each pod
	nets  []netConfig

	known  bool         // leasehold has been called before
	with   map[kind]int // events, and how often each may happen; see always
	kills  int          // how often a call may be killed; see always
	share  float64      // policy maxHeldShare, if not 0
	probe  probe        // how it is proven that no address is lost for good
	short  int          // the depth to which the short form goes
	limits limits
}

// always is for events that may happen any number of times.
const always = 1 << 20

type podConfig struct {
	net    int
	window time.Duration
	untold bool // to the plugin: the agent alone sees the pod's annotation
}

type netConfig struct {
	name string
	sets []string // "10.0.0.0/24 10.0.0.2-10.0.0.3", a range set each
}

// limits bound a search; zero is none.
type limits struct {
	depth int
	time  time.Duration
}

func (c config) boxCount() int { return len(c.pods) * c.lives }

// podOf is the pod of a sandbox.
func (c config) podOf(box int) int { return box / c.lives }

func (c config) netOf(box int) int { return c.pods[c.podOf(box)].net }

// podName and boxName are what the code under test calls them: pods "a" and "b", their sandboxes
// "a1", "a2", "b1".
func podName(pod int) string { return string(rune('a' + pod)) }

func (c config) boxName(box int) string {
	return podName(c.podOf(box)) + string(rune('1'+box%c.lives))
}

// boxNamed is the sandbox of a container id; -1 if there is none.
func (c config) boxNamed(name string) int {
	for b := range c.boxCount() {
		if c.boxName(b) == name {
			return b
		}
	}
	return -1
}

func netnsPath(name string) string { return "/run/netns/" + name }

func (n netConfig) parse() []pool.Set {
	var out []pool.Set
	for _, text := range n.sets {
		out = append(out, parseSet(text))
	}
	return out
}

// poolSet is leasehold's range set.
type poolSet = pool.Set

func parseSet(text string) pool.Set {
	subnet, span, _ := strings.Cut(text, " ")
	from, to, _ := strings.Cut(span, "-")
	first, last := netip.MustParseAddr(from), netip.MustParseAddr(to)
	rng, err := pool.NewRange(netip.MustParsePrefix(subnet), first, last, netip.Addr{})
	if err != nil {
		panic(err)
	}
	set, err := pool.NewSet(rng)
	if err != nil {
		panic(err)
	}
	return set
}

func (c config) options() policy.Config {
	o := policy.Defaults()
	o.BusyTimeout, o.SoftHold = busy, soft
	if c.share != 0 {
		o.MaxHeldShare = c.share
	}
	return o
}
