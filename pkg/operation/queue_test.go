package operation

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// lifeHost is a host on which all holders have one state.
type lifeHost struct {
	*host.Host
	life lease.Liveness
}

func (h lifeHost) QuickState(lease.Holder, string) (lease.Liveness, error) { return h.life, nil }
func (h lifeHost) Namespaces() ([]host.Namespace, error)                   { return nil, nil }

// newNode returns a node that has its directories in dir, and on whose host all holders have one
// state.
func newNode(dir string, life lease.Liveness, now *lease.Instant) *Node {
	return &Node{
		Store: store.New(store.Dirs{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}),
		Host:  lifeHost{host.New("/proc", host.DefaultBootIDFile), life}, Plugin: true,
		Clock: func() lease.Instant { return *now }, CacheDirs: []string{filepath.Join(dir, "none")},
	}
}

// TestQueuedDEL queues a DEL of c1@eth0 in each situation: where its pool is known from, the lease
// of the address, host-local's file of it and its age, and whether c1 is alive. Whatever happens to
// the lease, the next call ends the DEL.
func TestQueuedDEL(t *testing.T) {
	addr, states := netip.MustParseAddr("10.0.0.5"), map[string]lease.State{}
	r, err := pool.NewRange(netip.MustParsePrefix("10.0.0.0/24"), netip.Addr{}, netip.Addr{}, netip.Addr{})
	must.Succeed(t, err)
	run := func(t *testing.T, where, record, file string, life lease.Liveness) {
		dir, now := t.TempDir(), lease.Instant{Wall: time.Unix(1_700_000_000, 0), Boot: time.Hour, BootID: "boot-1"}
		at := now
		p := lease.Pool{DataDir: filepath.Join(dir, "networks"), Network: "cbr0"}
		n := newNode(dir, life, &now)
		update := func(in Scope, fn func(*Call) error) {
			t.Helper()
			must.Succeed(t, n.Update(t.Context(), in, fn))
		}
		update(Scope{}, func(c *Call) error { return c.Tx.Count("n", 1) })
		if where == "imported pool" {
			update(Scope{Pool: p, Sets: []pool.Set{{r}}}, func(*Call) error { return nil })
		}
		if record != "none" {
			l := lease.Lease{ID: NewID(), Pool: p, Address: addr, Set: "set", State: lease.Bound, Namespace: "db",
				Name: "db-0", CoolDown: time.Minute, BoundAt: now, Holder: lease.Holder{ContainerID: "c1",
					IfName: "eth0", Netns: lease.Netns{Path: "/run/netns/c1", Dev: 4, Ino: 11}, BootID: now.BootID}}
			switch record {
			case "bound after the DEL":
				l.BoundAt.Boot += 2 * time.Second
			case "imported after the DEL":
				l.BoundAt.Boot, l.Set = l.BoundAt.Boot+2*time.Second, ""
			case "held":
				l.State, l.Hold, l.ReleasedAt = lease.Held, lease.Window(time.Minute), now
			}
			update(Scope{}, func(c *Call) error { return c.Put(lease.Lease{}, l) })
		}
		path := filepath.Join(hostlocal.Path(p), addr.String())
		if where != "no directory" {
			must.Succeed(t, os.MkdirAll(hostlocal.Path(p), 0o755))
			_ = os.Remove(path)
			if file != "none" {
				name, age, _ := strings.Cut(file, ", ")
				written := at.Wall.Add(-time.Second)
				if age == "newer" {
					written = at.Wall.Add(2 * time.Second)
				}
				err := os.WriteFile(path, []byte(name+"\r\neth0"), 0o600)
				if err == nil {
					err = os.Chtimes(path, written, written)
				}
				must.Succeed(t, err)
			}
		}
		queued := p
		if where == "unknown pool" {
			queued = lease.Pool{}
		}
		// An earlier DEL, of the pool, is applied first.
		update(Scope{}, func(c *Call) error {
			return c.Put(lease.Lease{}, lease.Lease{ID: NewID(), Pool: p, Address: addr.Next(), State: lease.Bound,
				BoundAt: now, Holder: lease.Holder{ContainerID: "c0", IfName: "eth0", BootID: now.BootID}})
		})
		must.Succeed(t, n.Store.Run().AddDEL(lease.Attachment{ContainerID: "c0", IfName: "eth0"}, queued, now))
		at.Boot, at.Wall = at.Boot+time.Second, at.Wall.Add(time.Second)
		must.Succeed(t, n.Store.Run().AddDEL(lease.Attachment{ContainerID: "c1", IfName: "eth0"}, queued, at))
		now.Boot, now.Wall = now.Boot+3*time.Second, now.Wall.Add(3*time.Second)

		var got lease.Lease
		update(Scope{}, func(c *Call) (err error) { got, err = c.Tx.Get(p, addr); return err })
		if left, err := n.Store.Run().QueuedDELs(now.BootID); err != nil || len(left) > 0 {
			t.Errorf("queued after the call: %+v, %v", left, err)
		}
		// The file counts only if nothing is bound to c1 that was not imported, and only in the
		// pool that the DEL names.
		searched := !strings.HasPrefix(record, "bound") && where != "unknown pool" && where != "no directory"
		want := map[string]lease.State{"bound before the DEL": lease.Held, "bound after the DEL": lease.Bound,
			"imported after the DEL": lease.Bound, "held": lease.Held}[record]
		if record == "imported after the DEL" && (where == "imported pool" || searched && file == "c1") {
			want = lease.Held
		}
		if searched && file == "c1, newer" {
			want = lease.Bound // an ADD of host-local is under way
		}
		holder := "c1"
		if (record == "bound before the DEL" || record == "imported after the DEL") && where == "imported pool" &&
			file == "c2" {
			want, holder = lease.Bound, "c2" // host-local has given the address to it (judge)
		}
		if got.State != want || want != lease.None && got.Holder.ContainerID != holder ||
			want == lease.Held && record != "held" && got.ReleasedAt.Boot != at.Boot {
			t.Errorf("%s, holder %s, released at %+v, want %s", got.State, got.Holder.ContainerID, got.ReleasedAt, want)
		}
		content, _ := os.ReadFile(path)
		if names := hostlocal.Names(string(content), "c1", "eth0"); names && searched && want != lease.Bound {
			t.Errorf("the file still names c1")
		}
		states[got.State.String()] = got.State
	}
	for _, where := range []string{"unknown pool", "no directory", "pool that is not imported", "imported pool"} {
		for _, record := range []string{"none", "bound before the DEL", "bound after the DEL",
			"imported after the DEL", "held"} {
			for _, file := range []string{"none", "c1", "c1, newer", "c2"} {
				for _, life := range []lease.Liveness{lease.Unknown, lease.Alive, lease.Dead} {
					if where == "no directory" && file != "none" {
						continue
					}
					t.Run(fmt.Sprintf("%s, %s, file %s, %s", where, record, file, life), func(t *testing.T) {
						run(t, where, record, file, life)
					})
				}
			}
		}
	}
	check.Equal(t, len(states), 3, "states", states)
}
