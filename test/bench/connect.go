package main

import (
	"fmt"
	"net/netip"
	"os"
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

// connect measures how long it takes, from the start of its ADD, until somebody can connect to a pod that came back to its
// address, while a sibling and the node have never ceased to try: every 10 ms each, by TCP. Against a fresh address, which
// nobody can know before its ADD has ended, and of which they try from then on.
//
// Whoever gets no help is tried every 50 ms after a second without success, and all its rounds run at once.
func (b *bench) connect() {
	agent, chained := b.street("bridge", false), b.street("bridge", true)
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
	b.progress("bridge without help: this takes a minute and more")
	b.unhelped(table, keptAlone, b.street("bridge", false))
	b.unhelped(table, hostLocal, b.streetOf("host-local", "bridge", false))

	// A link of its own for each pod: there is little to get wrong. IPv4, for ptp spends seconds on addresses of IPv6.
	none, agent, chained := b.streetOf("host-local", "ptp", false), b.street("ptp", false), b.street("ptp", true)
	agent.node.Agent()
	for i := range b.rounds(20) {
		if i%5 == 0 {
			b.progress("ptp: round %d of %d", i+1, b.rounds(20))
		}
		table.add(ptpHostLocal, none.kept())
		table.add(ptpAgent, agent.kept())
		table.add(ptpChained, chained.kept())
	}
	table.print()
}

// A variant is a row of the table.
type variant struct {
	what    string
	against *variant // nil: others are measured against it
	goal    float64  // of the medians' ratio; 0 for none
}

var (
	fresh        = &variant{what: "bridge: a fresh address"}
	keptByAgent  = &variant{"bridge: kept, with the agent", fresh, 1.5}
	freshChained = &variant{"bridge and chained entry: a fresh address", fresh, 0}
	keptChained  = &variant{"bridge and chained entry: kept, without agent", freshChained, 1.5}
	keptAlone    = &variant{"bridge: kept, the plugin alone", fresh, 0}
	hostLocal    = &variant{"bridge: the same address by host-local", fresh, 0}
	ptpHostLocal = &variant{what: "ptp: the same address by host-local"}
	ptpAgent     = &variant{"ptp: kept, with the agent", ptpHostLocal, 1.1} // not worse than before
	ptpChained   = &variant{"ptp and chained entry: kept, without agent", ptpHostLocal, 0}
)

// unhelped runs a few rounds at once.
func (b *bench) unhelped(table *connects, what *variant, s *street) {
	var running sync.WaitGroup
	results := make(chan times, 8)
	s.init()
	for range max(2, b.rounds(6)) {
		running.Go(func() { results <- (&street{b: b, node: s.node, net: s.net, sibling: s.sibling, ips: s.ips}).kept() })
		time.Sleep(150 * time.Millisecond) // so that their processes do not hinder each other
	}
	running.Wait()
	close(results)
	for r := range results {
		table.add(what, r)
	}
}

const street4, street6 = "10.1.0.0/16", "fd01::/64"

// A street is a network, a pod on it that is made again and again, and its neighbours.
type street struct {
	b       *bench
	node    *lab.Node
	net     *lab.Network
	sibling *lab.Sandbox
	ips     bool // the runtime asks for the addresses again

	pod     lab.Pod
	life    *lab.Sandbox
	addrs   []string
	knocks  []*knocker
	counter int
}

func (b *bench) street(plugin string, chained bool) *street {
	return b.streetOf("leasehold", plugin, chained)
}

func (b *bench) streetOf(ipamType, plugin string, chained bool) *street {
	node := lab.NewNode(b)
	s := &street{b: b, node: node, ips: ipamType == "host-local"}
	subnets := []string{street4}
	if plugin == "bridge" {
		subnets = append(subnets, street6)
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

func (s *street) init() {
	if s.sibling == nil {
		s.sibling = s.node.Sandbox(lab.NewPod("default", "sibling", ""))
		_, err := s.sibling.Add(s.net)
		s.b.check(err)
	}
	if s.pod.Name == "" {
		s.pod = lab.NewPod("default", lab.Link("pod-"), "1h")
	}
}

// birth makes the next sandbox of a pod, with somebody in it who answers.
func (s *street) birth(pod lab.Pod) *lab.Sandbox {
	life := s.node.Sandbox(pod)
	if s.ips && s.addrs != nil {
		life.Capabilities["ips"] = s.addrs
	}
	life.Echo()
	return life
}

// fresh is a pod that nobody has known before.
func (s *street) fresh() times {
	s.init()
	s.counter++
	life := s.birth(lab.NewPod("default", fmt.Sprint("fresh-", s.counter), ""))
	began := time.Now()
	addrs, err := life.Add(s.net)
	s.b.check(err)
	knocks := s.knock(addrs)
	expect(knocks)
	took := s.b.await(knocks, began)
	stop(knocks)
	s.b.check(life.Stop(s.net))
	return took
}

// kept is another life of the street's pod.
func (s *street) kept() times {
	s.init()
	if s.life == nil {
		s.life = s.birth(s.pod)
		addrs, err := s.life.Add(s.net)
		s.b.check(err)
		s.addrs = addrs
		s.knocks = s.knock(addrs)
		expect(s.knocks)
		s.b.await(s.knocks, time.Now())
	}
	time.Sleep(300 * time.Millisecond) // of talking to it
	s.b.check(s.life.Stop(s.net))
	time.Sleep(200 * time.Millisecond) // of being away
	s.pod.UID = lab.NewPod("", "", "").UID
	s.life = s.birth(s.pod)
	expect(s.knocks)
	began := time.Now()
	addrs, err := s.life.Add(s.net)
	s.b.check(err)
	if strings.Join(addrs, " ") != strings.Join(s.addrs, " ") {
		s.b.Fatalf("it came back with %v, not with %v", addrs, s.addrs)
	}
	return s.b.await(s.knocks, began)
}

// knock has the sibling and the node try each of the addresses from now on.
func (s *street) knock(addrs []string) []*knocker {
	var out []*knocker
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
			k := &knocker{what: from.who + " " + family(addr), to: netip.MustParseAddr(addr), first: make(chan time.Time, 1), end: make(chan struct{})}
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

// A knocker tries to connect again and again, from one place to one address.
type knocker struct {
	what     string
	to       netip.Addr
	expected atomic.Bool
	first    chan time.Time // when it first succeeded since it was expected to
	end      chan struct{}
	once     sync.Once
}

// times are how long the first success took, by who had it.
type times map[string]time.Duration

// expect begins a measurement: nobody answers now.
func expect(knocks []*knocker) {
	for _, k := range knocks {
		k.expected.Store(true)
	}
}

// await waits for everybody's first success since expect.
func (b *bench) await(knocks []*knocker, began time.Time) times {
	const limit = 2 * time.Minute // neighbours find out by themselves within 45 s
	took := times{}
	for _, k := range knocks {
		select {
		case first := <-k.first:
			took[k.what] = first.Sub(began)
		case <-time.After(limit):
			b.Fatalf("%s: nobody answers at %s after %v", k.what, k.to, limit)
		}
	}
	return took
}

func stop(knocks []*knocker) {
	for _, k := range knocks {
		k.once.Do(func() { close(k.end) })
	}
}

const (
	every    = 10 * time.Millisecond
	rarely   = 50 * time.Millisecond
	patience = 300 * time.Millisecond // with one attempt
)

// attempt is a connection that is being made.
type attempt struct {
	fd    int
	began time.Time
}

// run makes attempts without waiting for the ones before, on a thread in the right network namespace.
func (k *knocker) run() error {
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
			next = now.Add(every)
			if now.Sub(last) > time.Second {
				next = now.Add(rarely)
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

// reap waits at most so long for an attempt to end, and closes those that have ended or are too old.
func reap(open []attempt, wait time.Duration) (left []attempt, succeeded bool) {
	polled := make([]unix.PollFd, len(open))
	for i, a := range open {
		polled[i] = unix.PollFd{Fd: int32(a.fd), Events: unix.POLLOUT}
	}
	unix.Poll(polled, int(max(0, wait.Milliseconds())+1))
	for i, a := range open {
		if polled[i].Revents == 0 && time.Since(a.began) < patience {
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

// connects is the table of all that.
type connects struct {
	order []*variant
	rows  map[*variant]map[string][]time.Duration // by who had success
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

func (c *connects) print() {
	fmt.Println("\nFirst connect, in ms from the start of ADD: p50, p90, and the ratio of the p50 to that of a fresh address of\nthe same network (of the fresh address with the chained entry: to that without it; of ptp: to no help). Goal: that ratio, and p90 <= 500.")
	w := tabwriter.NewWriter(os.Stdout, 0, 4, 3, ' ', 0)
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
