package explore

import (
	"cmp"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"

	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/pool"
)

// tenant is the Kubernetes namespace of all pods.
const tenant = "ns"

// network is the name of the CNI network.
const network = "net"

// Upper bounds of any model.
const (
	maxPods      = 3
	maxSandboxes = 6
	maxSets      = 2
)

// The durations of all models, as multiples of a step of the clock. An event takes a moment:
// nothing happens at the same time as something else. Moments never add up to a step.
const (
	moment  = 10 * time.Second
	step    = 6000 * time.Second
	window  = 2 * step // of the pods that ask for one
	cooling = step     // policy coolDown
	busy    = step     // policy busyTimeout
)

// tenMinutes is the time of a wait: longer than a short cool-down, and shorter than one that a boot
// begins. In models with waits it is the unit of the canonical form.
const tenMinutes = 10 * time.Minute

// unit is what no sum of moments reaches in a model, and what all its durations are multiples of.
func (c config) unit() time.Duration {
	if c.with[wait] > 0 {
		return tenMinutes
	}
	return step
}

// config is what a model consists of, and which events it has.
type config struct {
	name string

	pods   []podConfig
	perPod int      // sandboxes
	sets   []string // of ranges: "10.0.0.0/24 10.0.0.2-10.0.0.3"

	coolDown time.Duration // policy coolDown; cooling if it is 0
	share    float64       // policy maxHeldShare; none if it is 0

	known   bool         // leasehold has been called before
	imports bool         // the agent imports what host-local has assigned; libcni's cache has its sandboxes
	with    map[kind]int // events, and how often each may happen; see always
	kills   int          // how often a call may be killed; see always
	short   int          // the depth of the short form
	limits  limits
}

// always is for events that may happen any number of times.
const always = 1 << 20

type podConfig struct {
	window    time.Duration
	agentOnly bool // only the agent sees the pod's annotation, the plugin does not
	// reserveAs is the reservation name; each sandbox is then that of another pod.
	reserveAs string
	oneUID    bool // its sandboxes are of one pod, and not of pods of one name
}

// limits bound a search; zero is none.
type limits struct {
	depth int
	time  time.Duration
}

func (c config) sandboxCount() int { return len(c.pods) * c.perPod }

// podOf is the pod of a sandbox.
func (c config) podOf(sandbox int) int { return sandbox / c.perPod }

// podName and sandboxName are the names in the code under test: pods "a" and "b", their sandboxes
// "a1", "a2", "b1".
func podName(pod int) string { return string(rune('a' + pod)) }

func (c config) sandboxName(sandbox int) string {
	return podName(c.podOf(sandbox)) + string(rune('1'+sandbox%c.perPod))
}

// uidOf is the UID of a sandbox's pod, without its prefix.
func (c config) uidOf(sandbox int) string {
	if pod := c.podOf(sandbox); c.pods[pod].oneUID {
		return podName(pod)
	}
	return c.sandboxName(sandbox)
}

// sandboxNamed is the sandbox of a container id; -1 if there is none.
func (c config) sandboxNamed(name string) int {
	for b := range c.sandboxCount() {
		if c.sandboxName(b) == name {
			return b
		}
	}
	return -1
}

// poolSet is leasehold's range set.
type poolSet = pool.Set

// parseSet returns a range set as leasehold and as host-local see it.
func parseSet(text string) rangeSet {
	subnet, span, _ := strings.Cut(text, " ")
	from, to, _ := strings.Cut(span, "-")
	first, last := netip.MustParseAddr(from), netip.MustParseAddr(to)
	rng, err := pool.NewRange(netip.MustParsePrefix(subnet), first, last, netip.Addr{})
	must(err)
	set, err := pool.NewSet(rng)
	must(err)
	_, prefix, err := net.ParseCIDR(subnet)
	must(err)
	host := allocator.RangeSet{{Subnet: types.IPNet(*prefix), RangeStart: first.AsSlice(), RangeEnd: last.AsSlice()}}
	must(host.Canonicalize())
	return rangeSet{set, host}
}

func (c config) options() policy.Config {
	o := policy.Defaults()
	o.BusyTimeout, o.CoolDown = busy, cmp.Or(c.coolDown, cooling)
	if c.share > 0 {
		o.MaxHeldShare = c.share
	}
	return o
}
