package importer

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/test/cases"
	"github.com/leasehold-cni/leasehold/test/check"
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

func subnet(s string) pool.Set {
	r, err := pool.NewRange(netip.MustParsePrefix(s), netip.Addr{}, netip.Addr{}, netip.Addr{})
	if err != nil {
		panic(err)
	}
	return pool.Set{r}
}

// TestFind reads the cases of testdata/find.txt.
func TestFind(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("only root reads directories of mode 000; make test runs as root")
	}
	for _, c := range cases.Read(t, "testdata/find.txt") {
		if c.Name == "" {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			n := newNode(t)
			var sets []pool.Set
			for _, line := range c.Given {
				sets = append(sets, n.have(strings.Fields(line), line)...)
			}
			found, err := Find(n.node(), n.pool, sets, now, testCoolDown, ids())
			must.Succeed(t, err)
			var got []string
			for _, f := range found.Findings {
				text := story(f)
				if h := f.Lease.Holder; h.Netns.Ino == 0 && h.Netns.Path != "" {
					text += " path " + h.Netns.Path
				}
				got = append(got, text)
			}
			for i, text := range found.Problems {
				i += len(found.Findings)
				if want, ok := strings.CutPrefix(slices.Concat(c.Want, found.Problems)[i], "problem: "); ok &&
					strings.Contains(text, want) {
					text = want
				}
				got = append(got, "problem: "+text)
			}
			if found.Named {
				got = append(got, "all named")
			}
			check.Slices(t, got, c.Want)
		})
	}
}

// have makes what one line of testdata/find.txt says, and returns its range set.
func (n *node) have(words []string, line string) (sets []pool.Set) {
	path := filepath.Join(n.dir, words[1])
	rest := strings.TrimPrefix(strings.TrimPrefix(line, words[0]+" "+words[1]), " ")
	switch words[0] {
	case "network":
		n.pool.Network = words[1]
	case "ranges":
		return []pool.Set{subnet(words[1])}
	case "lives":
		ino, err := strconv.ParseUint(words[2], 10, 64)
		must.Succeed(n.t, err)
		n.lives(words[1], ino, words[3:]...)
	case "closed":
		n.host.spaces = append(n.host.spaces, host.Namespace{Netns: lease.Netns{Path: words[1]}, Err: errors.New(rest)})
	case "file":
		if text, err := strconv.Unquote(rest); err == nil {
			rest = text
		}
		n.write(words[1], rest)
	case "large":
		n.write(words[1], strings.Repeat(" ", files.Max+1))
	case "entry":
		n.write(words[1], string(entry(rest)))
	case "fifo":
		must.Succeed(n.t, unix.Mkfifo(path, 0o600))
	case "dir":
		must.Succeed(n.t, os.Mkdir(path, 0o700))
	case "link":
		must.Succeed(n.t, os.Symlink(filepath.Join(n.dir, rest), path))
	case "hidden":
		must.Succeed(n.t, os.Chmod(path, 0))
		n.t.Cleanup(func() { _ = os.Chmod(path, 0o755) })
	default:
		n.t.Fatalf("unknown line %q", line)
	}
	return nil
}

// Who cannot look must not say that there is nothing.
func TestFindBlind(t *testing.T) {
	n := newNode(t)
	n.host.blind = errors.New("no /proc")
	_, err := Find(n.node(), n.pool, nil, now, testCoolDown, ids())
	check.Is(t, err, ErrUnreadable, "without namespaces")
	n = newNode(t)
	n.write("networks/x", "")
	must.Succeed(t, os.Symlink(filepath.Join(n.pool.DataDir, "cbr0"), filepath.Join(n.pool.DataDir, "cbr0")))
	_, err = Find(n.node(), n.pool, nil, now, testCoolDown, ids())
	check.Is(t, err, ErrUnreadable, "with a directory that cannot be listed")
	for _, p := range []lease.Pool{{}, {DataDir: "networks", Network: "cbr0"}, {DataDir: "/x", Network: "../cbr0"},
		{DataDir: "/x", Network: ".."}} {
		_, err := Find(n.node(), p, nil, now, testCoolDown, ids())
		check.Is(t, err, ErrUnreadable, "pool", p)
	}
}

func TestCacheEntry(t *testing.T) {
	n := newNode(t)
	n.lives("/run/netns/db-0", 11)
	n.write("results/cbr0-c1-eth0", string(entry("{}")))
	n.write("results/cbr0-c1-eth1", string(entry(`{"ifName": "eth1"}`)))
	n.write("results/cbr0-c1-x-eth0", string(entry(`{"containerId": "c1-x"}`)))
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
		check.Equal(t, len(candidates), tt.want, tt, candidates)
		check.Empty(t, problems, tt)
		for _, c := range candidates {
			if c.ContainerID != tt.id || c.Kind != fromLiveCache || c.Netns.Ino != 11 {
				t.Errorf("%+v: %+v", tt, c)
			}
		}
	}
}
