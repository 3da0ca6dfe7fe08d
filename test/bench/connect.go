package main

import (
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// connect measures the time from the start of ADD until a sibling and the node can connect to a pod
// that came back to its address, while they try to connect by TCP interval 10 ms all the time. It
// compares that with a fresh address, which they try from the end of ADD, because it is not known
// before: with the agent, and without it with a chained entry.
func (b *bench) connect() {
	for _, chained := range []bool{false, true} {
		s := b.setup(chained)
		what := "first connect with a chained entry"
		if !chained {
			s.node.Agent()
			what = "first connect with the agent"
		}
		fresh, kept := map[string][]time.Duration{}, map[string][]time.Duration{}
		for range b.rounds(30) {
			for _, round := range []struct {
				run func() times
				all map[string][]time.Duration
			}{{s.fresh, fresh}, {s.kept, kept}} {
				for who, took := range round.run() {
					round.all[who] = append(round.all[who], took)
				}
			}
		}
		for _, who := range slices.Sorted(maps.Keys(kept)) {
			b.add(figure{Figure: what + " of " + who, Unit: "ms", Leasehold: inMS(percentile(kept[who], 50)),
				Other: inMS(percentile(fresh[who], 50)), Against: "a fresh address"}.atMost(1.5))
		}
	}
}

const subnet4, subnet6 = "10.1.0.0/16", "fd01::/64"

// A setup is a network with a pod that is recreated in each round, and its neighbours.
type setup struct {
	b       *bench
	node    *lab.Node
	net     *lab.Network
	sibling *lab.Sandbox

	pod     lab.Pod
	sandbox *lab.Sandbox
	addrs   []string
	probers []*prober
	counter int
}

func (b *bench) setup(chained bool) *setup {
	node := lab.NewNode(b)
	entries := []lab.Conf{node.Bridge(node.IPAM(subnet4, subnet6))}
	entries[0]["capabilities"] = lab.Conf{lab.Annotations: true}
	if chained {
		entries = append(entries, lab.Conf{"type": "leasehold"})
	}
	return &setup{b: b, node: node, net: node.Network("net", "1.0.0", entries...)}
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
