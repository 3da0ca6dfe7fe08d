package main

import (
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// connect measures the time from the start of ADD until a sibling and the node can connect to a pod
// that came back to its address, while they try to connect by TCP interval 10 ms all the time. It
// compares that with a fresh address, which they try from the end of ADD, because it is not known
// before.
//
// Variants without announcements are tried interval 50 ms after a second without success, and all
// their rounds run at the same time.
func (b *bench) connect() {
	agent, chained := b.setup("bridge", false), b.setup("bridge", true)
	agent.node.Agent()
	table := &connects{}
	variants := []func(){
		func() { table.add(fresh, agent.fresh()) },
		func() { table.add(keptByAgent, agent.kept()) },
		func() { table.add(freshChained, chained.fresh()) },
		func() { table.add(keptChained, chained.kept()) },
	}
	for i := range b.rounds(30) {
		if i%5 == 0 {
			b.progress("bridge: round %d of %d", i+1, b.rounds(30))
		}
		for j := range variants {
			variants[(i+j)%len(variants)]()
		}
	}
	b.progress("bridge without announcements: this takes more than a minute")
	b.unhelped(table, keptAlone, b.setup("bridge", false))
	b.unhelped(table, hostLocal, b.setupOf("host-local", "bridge", false))

	// With ptp each pod has its own link. Only IPv4, because ptp takes seconds for IPv6 addresses.
	none, agent, chained := b.setupOf("host-local", "ptp", false), b.setup("ptp", false), b.setup("ptp", true)
	agent.node.Agent()
	for i := range b.rounds(20) {
		if i%5 == 0 {
			b.progress("ptp: round %d of %d", i+1, b.rounds(20))
		}
		table.add(ptpHostLocal, none.kept())
		table.add(ptpAgent, agent.kept())
		table.add(ptpChained, chained.kept())
	}
	b.firstConnects(table)
}

// A variant is a row of the table.
type variant struct {
	what    string
	against *variant // the row to compare with; nil for none
	goal    float64  // for the ratio of the medians; 0 for none
}

var (
	fresh        = &variant{what: "bridge: a fresh address"}
	keptByAgent  = &variant{"bridge: kept, with the agent", fresh, 1.5}
	freshChained = &variant{"bridge and chained entry: a fresh address", fresh, 0}
	keptChained  = &variant{"bridge and chained entry: kept, without agent", freshChained, 1.5}
	keptAlone    = &variant{"bridge: kept, only the plugin", fresh, 0}
	hostLocal    = &variant{"bridge: the same address by host-local", fresh, 0}
	ptpHostLocal = &variant{what: "ptp: the same address by host-local"}
	ptpAgent     = &variant{"ptp: kept, with the agent", ptpHostLocal, 1.1} // not worse than before
	ptpChained   = &variant{"ptp and chained entry: kept, without agent", ptpHostLocal, 0}
)

// unhelped runs a few rounds at the same time.
func (b *bench) unhelped(table *connects, what *variant, s *setup) {
	var running sync.WaitGroup
	results := make(chan times, 8)
	s.init()
	for range max(2, b.rounds(6)) {
		running.Go(func() {
			results <- (&setup{b: b, node: s.node, net: s.net, sibling: s.sibling, ips: s.ips}).kept()
		})
		time.Sleep(150 * time.Millisecond) // so that their processes do not hinder each other
	}
	running.Wait()
	close(results)
	for r := range results {
		table.add(what, r)
	}
}

const subnet4, subnet6 = "10.1.0.0/16", "fd01::/64"

// A setup is a network with a pod that is recreated in each round, and its neighbours.
type setup struct {
	b       *bench
	node    *lab.Node
	net     *lab.Network
	sibling *lab.Sandbox
	ips     bool // the runtime requests the same addresses again

	pod     lab.Pod
	sandbox *lab.Sandbox
	addrs   []string
	probers []*prober
	counter int
}

func (b *bench) setup(plugin string, chained bool) *setup {
	return b.setupOf("leasehold", plugin, chained)
}

func (b *bench) setupOf(ipamType, plugin string, chained bool) *setup {
	node := lab.NewNode(b)
	s := &setup{b: b, node: node, ips: ipamType == "host-local"}
	subnets := []string{subnet4}
	if plugin == "bridge" {
		subnets = append(subnets, subnet6)
	}
	conf := lab.With(node.IPAM(subnets...), lab.Conf{"type": ipamType})
	entries := []lab.Conf{node.Bridge(conf)}
	if plugin == "ptp" {
		entries[0] = node.PTP(conf)
	}
	entries[0]["capabilities"] = lab.Conf{lab.Annotations: true, "ips": s.ips}
	if chained {
		entries = append(entries, lab.Conf{"type": "leasehold"})
	}
	s.net = node.Network("net", "1.0.0", entries...)
	return s
}

func (s *setup) init() {
	if s.sibling == nil {
		s.sibling = s.node.Sandbox(lab.NewPod("default", "sibling", ""))
		_, err := s.sibling.Add(s.net)
		s.b.check(err)
	}
	if s.pod.Name == "" {
		s.pod = lab.NewPod("default", lab.Link("pod-"), "1h")
	}
}

// newSandbox creates the next sandbox of a pod, with an echo server.
func (s *setup) newSandbox(pod lab.Pod) *lab.Sandbox {
	sandbox := s.node.Sandbox(pod)
	if s.ips && s.addrs != nil {
		sandbox.Capabilities["ips"] = s.addrs
	}
	sandbox.Echo()
	return sandbox
}

// fresh measures a pod with a new address.
func (s *setup) fresh() times {
	s.init()
	s.counter++
	sandbox := s.newSandbox(lab.NewPod("default", fmt.Sprint("fresh-", s.counter), ""))
	began := time.Now()
	addrs, err := sandbox.Add(s.net)
	s.b.check(err)
	probers := s.probe(addrs)
	expect(probers)
	took := s.b.await(probers, began)
	stop(probers)
	s.b.check(sandbox.Stop(s.net))
	return took
}

// kept measures the next sandbox of the setup's pod.
func (s *setup) kept() times {
	s.init()
	if s.sandbox == nil {
		s.sandbox = s.newSandbox(s.pod)
		addrs, err := s.sandbox.Add(s.net)
		s.b.check(err)
		s.addrs = addrs
		s.probers = s.probe(addrs)
		expect(s.probers)
		s.b.await(s.probers, time.Now())
	}
	time.Sleep(300 * time.Millisecond) // while the neighbours connect to it
	s.b.check(s.sandbox.Stop(s.net))
	time.Sleep(200 * time.Millisecond) // while the pod is away
	s.pod.UID = lab.NewPod("", "", "").UID
	s.sandbox = s.newSandbox(s.pod)
	expect(s.probers)
	began := time.Now()
	addrs, err := s.sandbox.Add(s.net)
	s.b.check(err)
	if strings.Join(addrs, " ") != strings.Join(s.addrs, " ") {
		s.b.Fatalf("the pod came back with %v, want %v", addrs, s.addrs)
	}
	return s.b.await(s.probers, began)
}

// probe starts probers of each address from the sibling and the node.
func (s *setup) probe(addrs []string) []*prober {
	var out []*prober
	for _, addr := range addrs {
		for _, from := range []struct {
			who   string
			place func(func() error) error
		}{
			{"sibling", func(f func() error) error {
				return ns.WithNetNSPath(s.sibling.NetNS, func(ns.NetNS) error { return f() })
			}},
			{"node", s.node.Do},
		} {
			k := &prober{what: from.who + " " + family(addr), to: netip.MustParseAddr(addr),
				first: make(chan time.Time, 1),
				end:   make(chan struct{})}
			go from.place(k.run)
			out = append(out, k)
		}
	}
	s.b.Cleanup(func() { stop(out) })
	return out
}

func family(addr string) string {
	if strings.Contains(addr, ":") {
		return "IPv6"
	}
	return "IPv4"
}

// A prober repeatedly connects to one address from one network namespace.
type prober struct {
	what     string
	to       netip.Addr
	expected atomic.Bool
	first    chan time.Time // time of the first success since expect
	end      chan struct{}
	once     sync.Once
}

// times are the times of the first success by prober.
type times map[string]time.Duration

// expect starts a measurement.
func expect(probers []*prober) {
	for _, k := range probers {
		k.expected.Store(true)
	}
}

// await waits for the first success of each prober since expect.
func (b *bench) await(probers []*prober, began time.Time) times {
	const limit = 2 * time.Minute // neighbour entries expire within 45 s
	took := times{}
	for _, k := range probers {
		select {
		case first := <-k.first:
			took[k.what] = first.Sub(began)
		case <-time.After(limit):
			b.Fatalf("%s: no connection to %s after %v", k.what, k.to, limit)
		}
	}
	return took
}

func stop(probers []*prober) {
	for _, k := range probers {
		k.once.Do(func() { close(k.end) })
	}
}

const (
	interval       = 10 * time.Millisecond
	slowInterval   = 50 * time.Millisecond
	attemptTimeout = 300 * time.Millisecond
)

// attempt is a pending connection.
type attempt struct {
	fd    int
	began time.Time
}

// run starts attempts without waiting for earlier ones. It must be called on a thread in the right
// network namespace.
func (k *prober) run() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var open []attempt
	defer func() {
		for _, a := range open {
			unix.Close(a.fd)
		}
	}()
	next, last := time.Now(), time.Now()
	for {
		select {
		case <-k.end:
			return nil
		default:
		}
		now := time.Now()
		if !now.Before(next) {
			if fd, err := dial(k.to); err == nil {
				open = append(open, attempt{fd, now})
			}
			next = now.Add(interval)
			if now.Sub(last) > time.Second {
				next = now.Add(slowInterval)
			}
		}
		var succeeded bool
		if open, succeeded = reap(open, time.Until(next)); succeeded {
			last = time.Now()
			if k.expected.CompareAndSwap(true, false) {
				k.first <- last
			}
		}
	}
}

func dial(to netip.Addr) (int, error) {
	const port = 7 // lab.EchoPort
	domain, sa := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: port})
	if to.Is4() {
		sa.(*unix.SockaddrInet4).Addr = to.As4()
	} else {
		domain, sa = unix.AF_INET6, &unix.SockaddrInet6{Port: port, Addr: to.As16()}
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}) // no TIME_WAIT
	if err := unix.Connect(fd, sa); err != nil && err != unix.EINPROGRESS {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// reap waits up to wait for an attempt to end, and closes those that have ended or timed out.
func reap(open []attempt, wait time.Duration) (left []attempt, succeeded bool) {
	polled := make([]unix.PollFd, len(open))
	for i, a := range open {
		polled[i] = unix.PollFd{Fd: int32(a.fd), Events: unix.POLLOUT}
	}
	unix.Poll(polled, int(max(0, wait.Milliseconds())+1))
	for i, a := range open {
		if polled[i].Revents == 0 && time.Since(a.began) < attemptTimeout {
			left = append(left, a)
			continue
		}
		if polled[i].Revents != 0 {
			code, err := unix.GetsockoptInt(a.fd, unix.SOL_SOCKET, unix.SO_ERROR)
			succeeded = succeeded || err == nil && code == 0
		}
		unix.Close(a.fd)
	}
	return left, succeeded
}

// connects is the table of results.
type connects struct {
	order []*variant
	rows  map[*variant]map[string][]time.Duration // by prober
}

func (c *connects) add(v *variant, t times) {
	if c.rows == nil {
		c.rows = map[*variant]map[string][]time.Duration{}
	}
	if c.rows[v] == nil {
		c.rows[v] = map[string][]time.Duration{}
		c.order = append(c.order, v)
	}
	for who, took := range t {
		c.rows[v][who] = append(c.rows[v][who], took)
	}
}

// firstConnects prints the table, and adds the figures that have goals.
func (b *bench) firstConnects(c *connects) {
	fmt.Fprintln(details, "\nFirst connect, in ms from the start of ADD: p50, p90, and the ratio of the p50 to that\n"+
		"of a fresh address in the same network (a fresh address with the chained entry: to one without; ptp: to\n"+
		"host-local). Goal: that ratio, and p90 <= 500.")
	w := tabwriter.NewWriter(details, 0, 4, 3, ' ', 0)
	who := []string{"sibling IPv4", "node IPv4", "sibling IPv6", "node IPv6"}
	fmt.Fprintln(w, "WHAT\tN\t"+strings.ToUpper(strings.Join(who, "\t"))+"\tGOAL\tMET")
	for _, v := range c.order {
		met, n, cells := true, 0, []string{}
		for _, from := range who {
			t := c.rows[v][from]
			if len(t) == 0 {
				cells = append(cells, "-")
				continue
			}
			p50, p90, ratio := percentile(t, 50), percentile(t, 90), "-"
			if v.against != nil {
				r := p50 / percentile(c.rows[v.against][from], 50)
				met = met && r <= v.goal && p90 <= float64(500*time.Millisecond)
				if v.goal > 0 {
					b.add(figure{Figure: v.what + ": first connect of " + from, Unit: "ms", Leasehold: inMS(p50),
						Other: inMS(p50 / r), Against: v.against.what}.atMost(v.goal))
				}
				ratio = fmt.Sprintf("%.2f", r)
			}
			n = len(t)
			cells = append(cells, fmt.Sprintf("%.0f  %.0f  %s", p50/1e6, p90/1e6, ratio))
		}
		goal, yes := "", ""
		if v.goal > 0 {
			goal, yes = fmt.Sprintf("<= %.2f", v.goal), map[bool]string{true: "yes", false: "NO"}[met]
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", v.what, n, strings.Join(cells, "\t"), goal, yes)
	}
	w.Flush()
}
