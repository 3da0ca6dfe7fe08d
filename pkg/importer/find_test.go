package importer

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/test/must"
)

// host is a simulated one: the namespaces that live, by path.
type fakeHost struct {
	spaces []host.Namespace
	blind  error
}

func (h fakeHost) Namespaces() ([]host.Namespace, error) { return h.spaces, h.blind }

func (h fakeHost) Netns(path string) (lease.Netns, error) {
	for _, s := range h.spaces {
		if s.Netns.Path == path {
			return s.Netns, nil
		}
	}
	if path == "/proc/7/ns/net" { // a process of the host's own
		return lease.Netns{Path: path, Dev: 4, Ino: 1}, nil
	}
	if strings.HasSuffix(path, "/unreadable") {
		return lease.Netns{Path: path}, unix.EIO
	}
	return lease.Netns{Path: path}, host.ErrNotNetns
}

// node is a host with directories of its own; files are written into them.
type node struct {
	t    *testing.T
	dir  string
	host fakeHost
	pool lease.Pool
	when time.Time
}

func newNode(t *testing.T) *node {
	dir := t.TempDir()
	return &node{t: t, dir: dir, pool: lease.Pool{DataDir: filepath.Join(dir, "networks"), Network: "cbr0"},
		when: wall.Add(-time.Hour)}
}

// write makes a file below the node's directory, each one a second newer.
func (n *node) write(path, content string) {
	n.t.Helper()
	path = filepath.Join(n.dir, path)
	n.when = n.when.Add(time.Second)
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600),
		os.Chtimes(path, n.when, n.when))
	must.Succeed(n.t, err)
}

// lives makes a namespace with addresses on eth0.
func (n *node) lives(path string, ino uint64, addrs ...string) {
	s := host.Namespace{Netns: lease.Netns{Path: path, Dev: 4, Ino: ino}}
	for _, a := range addrs {
		s.Addresses = append(s.Addresses, host.Address{Addr: netip.MustParseAddr(a), IfName: "eth0",
			MAC: "02:00:00:00:00:05"})
	}
	n.host.spaces = append(n.host.spaces, s)
}

func (n *node) node() Sources {
	return Sources{Netns: n.host.Netns, Namespaces: n.host.Namespaces,
		CacheDirs: []string{filepath.Join(n.dir, "results"), filepath.Join(n.dir, "cache/results")}}
}

func (n *node) find(sets ...pool.Set) (stories, problems []string) {
	n.t.Helper()
	found, err := Find(n.node(), n.pool, sets, now, testCoolDown, ids())
	must.Succeed(n.t, err)
	for _, f := range found.Findings {
		stories = append(stories, story(f))
	}
	return stories, found.Problems
}

func (n *node) want(got []string, want ...string) {
	n.t.Helper()
	if !reflect.DeepEqual(got, want) {
		n.t.Errorf("\n got %q\nwant %q", got, want)
	}
}

func subnet(s string) pool.Set {
	r, err := pool.NewRange(netip.MustParsePrefix(s), netip.Addr{}, netip.Addr{}, netip.Addr{})
	if err != nil {
		panic(err)
	}
	return pool.Set{r}
}

func TestFindOnAnEmptyNode(t *testing.T) {
	n := newNode(t)
	found, problems := n.find()
	n.want(found)
	n.want(problems)
}

// A node that host-local has served for a year, with a pod that asked for
// retention before leasehold came, one without, and one whose DEL never came.
func TestFindWhatHostLocalLeft(t *testing.T) {
	n := newNode(t)
	n.lives("/run/netns/db-0", 11, "10.0.0.5", "fd00::5")
	n.write("networks/cbr0/10.0.0.5", "c1\r\neth0")
	n.write("networks/cbr0/fd00::5", "c1\r\neth0")
	n.write("results/cbr0-c1-eth0", string(entry(nil)))
	n.write("networks/cbr0/10.0.0.6", "c2")
	n.write("cache/results/cbr0-c2-eth0", string(entry(func(f map[string]any) {
		f["containerId"], f["netns"], f["capabilityArgs"] = "c2", "/run/netns/gone", nil
		f["cniArgs"] = [][2]string{{"K8S_POD_NAME", "web-1"}, {"K8S_POD_NAMESPACE", "web"}}
		f["result"] = map[string]any{"ips": []any{map[string]any{"address": "10.0.0.6/24"}}}
	})))
	n.write("networks/cbr0/10.0.0.7", "")
	n.write("networks/cbr0/lock", "")
	n.write("networks/cbr0/last_reserved_ip.0", "10.0.0.7")
	n.write("networks/cbr0/fd00:0::7", "c9") // no address that host-local would write
	n.write("networks/cbr0/fd00__9", "c9")
	n.write("networks/other/10.0.0.9", "c9\r\neth0")
	n.write("results/other-c9-eth0", "{")
	n.write("results/cbr0-b-c9-eth0", string(entry(func(f map[string]any) {
		f["networkName"], f["containerId"] = "cbr0-b", "c9"
		f["result"] = map[string]any{"ips": []any{map[string]any{"address": "10.0.0.9/24"}}}
	})))

	found, problems := n.find(subnet("10.0.0.0/24"))
	n.want(found,
		"10.0.0.5 Bound db-0/u1 c1 eth0 02:00:00:00:00:05 /run/netns/db-0 window 10m0s",
		"10.0.0.6 Held cool-down 2m0s web-1 c2 eth0",
		"10.0.0.7 Bound nobody",
		"fd00::5 Bound db-0/u1 c1 eth0 02:00:00:00:00:05 /run/netns/db-0 window 10m0s")
	if len(problems) != 1 || !strings.Contains(problems[0], "10.0.0.7 names no container") {
		t.Errorf("problems: %q", problems)
	}
}

// The Kruise fork's own state: mode 000 directories, a container id that only
// the reservation knows, damaged files.
func TestFindWhatKruiseLeft(t *testing.T) {
	n := newNode(t)
	reserved := func(addr, more string) string {
		return `{"containerId":"c2","ifName":"eth0","IPConf":{"address":"` + addr + `/16"},"duration":60` + more + `}`
	}
	n.write("networks/cbr0/10.0.0.5", "c1\r\neth0")
	n.write("networks/reserved/db/db-0", reserved("10.0.0.5", `,"releaseTime":"2026-11-21T09:20:00Z"`))
	n.write("networks/reserved/db/db-1", reserved("10.0.0.6", ""))
	n.write("networks/reserved/db/db-2", reserved("10.0.0.8", `,"releaseTime":"2026-11-21T08:00:00Z"`))
	n.write("networks/reserved/db/db-3", "")
	n.write("networks/reserved/db/db-4", "null")
	n.write("networks/reserved/db/db.5", reserved("10.0.0.9", "")) // no label, and a pod's name
	must.Succeed(t, unix.Mkfifo(filepath.Join(n.dir, "networks/reserved/db/db-6"), 0o600))
	n.write("networks/reserved/db/DB.tmp~", "null")
	n.write("networks/reserved/not_a_namespace/db-0", "null")
	for _, dir := range []string{"networks/reserved/db", "networks/reserved"} {
		path := filepath.Join(n.dir, dir)
		must.Succeed(t, os.Chmod(path, 0))
		t.Cleanup(func() { _ = os.Chmod(path, 0o755) })
	}
	if os.Geteuid() != 0 {
		t.Fatal("only root reads directories of mode 000; make test runs as root")
	}

	found, problems := n.find(subnet("10.0.0.0/24"))
	n.want(found,
		"10.0.0.5 Held hold 20m0s db-0 c2 eth0 window 1h0m0s former in file",
		"10.0.0.6 Held hold 1h0m0s db-1 c2 eth0 window 1h0m0s",
		"10.0.0.9 Held hold 1h0m0s db.5 c2 eth0 window 1h0m0s")
	if len(problems) != 3 || !strings.Contains(problems[0], "db-3") || !strings.Contains(problems[1], "db-4") ||
		!strings.Contains(problems[2], "db-6 is not a regular file") {
		t.Errorf("problems: %q", problems)
	}
}

// A network may be called reserved: its files lie beside the fork's tree.
func TestFindInANetworkCalledReserved(t *testing.T) {
	n := newNode(t)
	n.pool.Network = "reserved"
	n.write("networks/reserved/10.0.0.5", "c1\r\neth0")
	n.write("networks/reserved/db/db-1", `{"ifName":"eth0","IPConf":{"address":"10.0.0.6/16"},"duration":60}`)
	found, problems := n.find()
	n.want(found, "10.0.0.5 Bound nobody c1 eth0", "10.0.0.6 Held hold 1h0m0s db-1 eth0 window 1h0m0s")
	n.want(problems)
}

// The files that we keep for host-local are a source for a lost store.
func TestFindWhatOurMirrorKept(t *testing.T) {
	n := newNode(t)
	held := leaseOf(lease.Held, "c1")
	n.write("networks/cbr0/10.0.0.5", hostlocal.Content(held, now))
	n.write("networks/cbr0/10.0.0.6", "#held db/db-1 eth0 fi") // cut off
	found, problems := n.find()
	n.want(found, "10.0.0.5 Held hold 1h0m0s db-0/u1 eth0 window 1h0m0s", "10.0.0.6 Bound nobody")
	if len(problems) != 1 || !strings.Contains(problems[0], "10.0.0.6") {
		t.Errorf("problems: %q", problems)
	}
}

// Addresses of strangers on the host are none of the pool's business, as long
// as the ranges are known and nobody else speaks of them.
func TestFindWithinTheRanges(t *testing.T) {
	n := newNode(t)
	n.lives("/run/netns/a", 11, "10.0.0.5", "172.17.0.2", "10.1.0.5")
	n.write("networks/cbr0/10.1.0.5", "c1\r\neth0") // the ranges have changed
	n.write("networks/cbr0/10.1.0.6", "c2\r\neth0")
	found, _ := n.find(subnet("10.0.0.0/24"))
	n.want(found,
		"10.0.0.5 Bound nobody eth0 02:00:00:00:00:05 /run/netns/a",
		"10.1.0.5 Bound nobody c1 eth0 02:00:00:00:00:05 /run/netns/a",
		"10.1.0.6 Bound nobody c2 eth0")
	found, _ = n.find()
	n.want(found, // without ranges only what somebody names
		"10.1.0.5 Bound nobody c1 eth0 02:00:00:00:00:05 /run/netns/a",
		"10.1.0.6 Bound nobody c2 eth0")
}

// After a reboot a recorded /proc/PID/ns/net leads to another process.
func TestFindDoesNotBelieveOldProcesses(t *testing.T) {
	n := newNode(t)
	n.write("results/cbr0-c1-eth0", string(entry(set("netns", "/proc/7/ns/net"))))
	found, _ := n.find()
	n.want(found, "10.0.0.5 Held hold 10m0s db-0/u1 c1 eth0 window 10m0s",
		"fd00::5 Held hold 10m0s db-0/u1 c1 eth0 window 10m0s")

	n.lives("/proc/8/ns/net", 12)
	n.write("results/cbr0-c1-eth0", string(entry(set("netns", "/proc/8/ns/net"))))
	found, _ = n.find()
	n.want(found, "10.0.0.5 Bound db-0/u1 c1 eth0 /proc/8/ns/net window 10m0s",
		"fd00::5 Bound db-0/u1 c1 eth0 /proc/8/ns/net window 10m0s")
}

// Odd files are in nobody's way, and an address with a file stays in use.
// A namespace has an interface once: of two entries that name the same one the older is of a
// container that is gone, and its namespace was made anew at its path.
func TestFindTwoEntriesOfOneInterface(t *testing.T) {
	n := newNode(t)
	n.lives("/run/netns/by-hand", 11)
	entryOf := func(container, ifName, addr string) {
		n.write("results/cbr0-"+container+"-"+ifName, string(entry(func(f map[string]any) {
			f["containerId"], f["ifName"], f["netns"] = container, ifName, "/run/netns/by-hand"
			f["cniArgs"] = [][2]string{{"K8S_POD_NAMESPACE", "db"}, {"K8S_POD_NAME", "of-" + container}}
			f["result"] = map[string]any{"ips": []any{map[string]any{"address": addr}}}
		})))
	}
	entryOf("c1", "eth0", "10.0.0.5/24")
	entryOf("c2", "net1", "10.0.0.6/24")
	entryOf("c3", "eth0", "10.0.0.7/24")
	found, problems := n.find()
	n.want(found, "10.0.0.5 Held hold 10m0s of-c1 c1 eth0 window 10m0s",
		"10.0.0.6 Bound of-c2 c2 net1 /run/netns/by-hand window 10m0s",
		"10.0.0.7 Bound of-c3 c3 eth0 /run/netns/by-hand window 10m0s")
	n.want(problems)
}

// TestNamed checks what proves that no address in use is missing after the loss of a store.
func TestNamed(t *testing.T) {
	cached := func(n *node) {
		n.lives("/run/netns/db-0", 11)
		n.write("results/cbr0-c1-eth0", string(entry(nil)))
	}
	other := func(n *node) { n.write("networks/cbr0/10.0.0.9", "c2\r\neth0") }
	unlisted := func(n *node) {
		must.Succeed(t, os.Symlink("cache", filepath.Join(n.dir, "cache")))
	}
	damaged := func(n *node) { n.write("results/cbr0-c3-eth0", "{") }
	invalid := func(n *node) {
		n.lives("/run/netns/db-0", 11)
		n.write("results/cbr0-c1-eth0", string(entry(annotations(map[string]any{policy.Annotation: "soon"}))))
		if _, problems := n.find(); len(problems) != 1 || !strings.Contains(problems[0], "cbr0-c1-eth0: ") {
			t.Errorf("problems: %q", problems)
		}
	}
	moved := func(n *node) {
		n.lives("/run/netns/moved", 11, "10.0.0.5", "fd00::5")
		n.write("results/cbr0-c1-eth0", string(entry(nil)))
		n.write("networks/cbr0/10.0.0.5", "c1\r\neth0")
		n.write("networks/cbr0/fd00::5", "c1\r\neth0")
	}
	for name, c := range map[string]struct {
		shows []func(*node)
		want  bool
	}{
		"no entry":                                {nil, false},
		"an entry for every container":            {[]func(*node){cached}, true},
		"a container without an entry":            {[]func(*node){cached, other}, false},
		"a container, and no entry":               {[]func(*node){other}, false},
		"a directory of entries cannot be listed": {[]func(*node){cached, unlisted}, false},
		"an entry that cannot be read":            {[]func(*node){cached, damaged}, false},
		"an entry with an invalid window":         {[]func(*node){invalid}, true},
		"an entry whose path leads nowhere":       {[]func(*node){moved}, true},
	} {
		n := newNode(t)
		for _, show := range c.shows {
			show(n)
		}
		found, err := Find(n.node(), n.pool, nil, now, testCoolDown, ids())
		if err != nil || found.Named != c.want {
			t.Errorf("%s: %+v, %v; want %v", name, found, err, c.want)
		}
	}
}

// A namespace that cannot be read is not one that is gone.
func TestFindUnreadableNetns(t *testing.T) {
	n := newNode(t)
	n.write("results/cbr0-c4-eth0", string(entry(func(f map[string]any) {
		f["containerId"], f["netns"] = "c4", "/run/netns/unreadable"
	})))
	found, problems := n.find()
	n.want(found, "10.0.0.5 Bound db-0/u1 c4 eth0 window 10m0s", "fd00::5 Bound db-0/u1 c4 eth0 window 10m0s")
	all, err := Find(n.node(), n.pool, nil, now, testCoolDown, ids())
	if err != nil || all.Findings[0].Lease.Holder.Netns.Path != "/run/netns/unreadable" {
		t.Errorf("%+v, %v", all, err)
	}
	if len(problems) != 1 || !strings.Contains(problems[0], "/run/netns/unreadable") {
		t.Errorf("problems: %q", problems)
	}
}

func TestFindOddFiles(t *testing.T) {
	n := newNode(t)
	n.write("networks/cbr0/10.0.0.5", strings.Repeat("x", files.Max+1))
	n.write("results/cbr0-c1-eth0", strings.Repeat(" ", files.Max+1))
	n.write("results/cbr0-c2-eth0", "")
	for _, path := range []string{"networks/cbr0/10.0.0.6", "results/cbr0-c3-eth0"} {
		must.Succeed(t, unix.Mkfifo(filepath.Join(n.dir, path), 0o600))
	}
	n.write("elsewhere", "c9\r\neth0")
	must.Succeed(t, os.Symlink(filepath.Join(n.dir, "elsewhere"),
		filepath.Join(n.dir, "networks/cbr0/10.0.0.7")))
	must.Succeed(t, os.Mkdir(filepath.Join(n.dir, "networks/cbr0/10.0.0.8"), 0o700))
	n.write("results/cbr0-c4-eth0", string(entry(func(f map[string]any) { // its file may be another's by now
		f["containerId"], f["netns"] = "c4", "/run/netns/gone"
		f["result"] = map[string]any{"ips": []any{map[string]any{"address": "10.0.0.7/24"},
			map[string]any{"address": "10.0.0.5/24"}}}
	})))
	n.host.spaces = []host.Namespace{{Netns: lease.Netns{Path: "/run/netns/x"},
		Err: errors.New("it cannot be entered")}}
	found, problems := n.find()
	n.want(found, "10.0.0.5 Bound nobody", "10.0.0.6 Bound nobody", "10.0.0.7 Bound nobody", "10.0.0.8 Bound nobody")
	if len(problems) != 8 || problems[4] != "it cannot be entered" {
		t.Errorf("%d problems: %q", len(problems), problems)
	}
	for _, want := range []string{"cbr0-c1-eth0 is larger than", "cbr0-c2-eth0: unexpected end",
		"cbr0-c3-eth0 is not a", "10.0.0.5 is larger than", "10.0.0.6 is not a", "10.0.0.8 is not a"} {
		if !slices.ContainsFunc(problems, func(p string) bool { return strings.Contains(p, want) }) {
			t.Errorf("%q, want one with %q", problems, want)
		}
	}
}

// Who cannot look must not say that there is nothing.
func TestFindBlind(t *testing.T) {
	n := newNode(t)
	n.host.blind = errors.New("no /proc")
	if _, err := Find(n.node(), n.pool, nil, now, testCoolDown, ids()); !errors.Is(err, ErrUnreadable) {
		t.Errorf("without namespaces: %v", err)
	}
	n = newNode(t)
	n.write("networks/x", "")
	must.Succeed(t, os.Symlink(filepath.Join(n.pool.DataDir, "cbr0"), filepath.Join(n.pool.DataDir, "cbr0")))
	if _, err := Find(n.node(), n.pool, nil, now, testCoolDown, ids()); !errors.Is(err, ErrUnreadable) {
		t.Errorf("with a directory that cannot be listed: %v", err)
	}
	for _, p := range []lease.Pool{{}, {DataDir: "networks", Network: "cbr0"}, {DataDir: "/x", Network: "../cbr0"},
		{DataDir: "/x", Network: ".."}} {
		if _, err := Find(n.node(), p, nil, now, testCoolDown, ids()); !errors.Is(err, ErrUnreadable) {
			t.Errorf("pool %+v: %v", p, err)
		}
	}
}

func TestCacheEntry(t *testing.T) {
	n := newNode(t)
	n.lives("/run/netns/db-0", 11)
	n.write("results/cbr0-c1-eth0", string(entry(nil)))
	n.write("results/cbr0-c1-eth1", string(entry(set("ifName", "eth1"))))
	n.write("results/cbr0-c1-x-eth0", string(entry(set("containerId", "c1-x"))))
	for _, tt := range []struct {
		network, id, ifName string
		want                int
	}{
		{"cbr0", "c1", "eth0", 2},
		{"cbr0", "c1", "", 4},
		{"cbr0", "c1-x", "eth0", 2},
		{"cbr0", "c9", "eth0", 0},
		{"cbr0", "c1", "eth", 0},
		{"cbr", "0-c1", "eth0", 0},
		{"../results/cbr0", "c1", "eth0", 0},
		{"cbr0", "", "", 0},
	} {
		candidates, problems := n.node().cacheEntry(tt.network, tt.id, tt.ifName)
		if len(candidates) != tt.want || len(problems) != 0 {
			t.Errorf("%+v: %+v %q", tt, candidates, problems)
		}
		for _, c := range candidates {
			if c.ContainerID != tt.id || c.Kind != fromLiveCache || c.Netns.Ino != 11 {
				t.Errorf("%+v: %+v", tt, c)
			}
		}
	}
}
