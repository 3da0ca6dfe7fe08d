package maintain

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/pool"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/must"
)

// slowHost has no namespaces. It is slow to say so of the container "slow".
type slowHost struct{ *host.Host }

func (slowHost) QuickState(h lease.Holder, boot string) (lease.Liveness, error) {
	if h.ContainerID == "slow" {
		time.Sleep(100 * time.Millisecond)
	}
	return lease.Dead, nil
}
func (slowHost) Namespaces() ([]host.Namespace, error)                 { return nil, nil }
func (slowHost) ProveView(string, string, iter.Seq[lease.Lease]) error { return nil }

// TestReserveAllOrNone reserves two addresses, of which the pod may have the first one only, after
// so many steps of a new boot that another one would have the operation go on in another
// transaction.
func TestReserveAllOrNone(t *testing.T) {
	s := newService(t)
	s.Node.Host = slowHost{host.New("/proc", host.DefaultBootIDFile)}
	p := lease.Pool{DataDir: filepath.Join(t.TempDir(), "networks"), Network: "cbr0"}
	var sets []pool.Set
	for _, subnet := range []string{"10.0.0.0/24", "fd00::/120"} {
		r, err := pool.NewRange(netip.MustParsePrefix(subnet), netip.Addr{}, netip.Addr{}, netip.Addr{})
		must.Succeed(t, err)
		sets = append(sets, pool.Set{r})
	}
	network, first := operation.Existing(p, sets), netip.MustParseAddr("10.0.0.200")
	const earlier = 100
	must.Succeed(t, s.Node.Update(t.Context(), network, func(c *operation.Call) (err error) {
		put := func(l lease.Lease) {
			l.ID, l.Pool, l.Set, l.Namespace = operation.NewID(), p, sets[1].ID(), "db"
			err = cmp.Or(err, c.Put(lease.Lease{}, l))
		}
		addr := netip.MustParseAddr("10.0.0.10")
		for i := range earlier {
			put(lease.Lease{Address: addr, State: lease.Bound, Name: fmt.Sprint("old-", i),
				Holder: lease.Holder{ContainerID: fmt.Sprint("c", i), IfName: "eth0", BootID: "earlier"}})
			addr = addr.Next()
		}
		put(lease.Lease{Address: netip.MustParseAddr("fd00::10"), State: lease.Held, Name: "over", ReleasedAt: c.Now,
			Holder: lease.Holder{ContainerID: "slow", IfName: "eth0", BootID: c.Now.BootID,
				Netns: lease.Netns{Path: "/run/netns/slow", Dev: 4, Ino: 11}}})
		put(lease.Lease{Address: netip.MustParseAddr("fd00::11"), State: lease.Held, Name: "db-0", ReleasedAt: c.Now,
			IsHold: true, Window: lease.Forever, Hold: lease.Forever, Holder: lease.Holder{IfName: "eth0"}})
		return err
	}))

	var refused *NotReserved
	_, err := s.Reserve(t.Context(), []operation.Scope{network}, Choice{Namespace: "db", Name: "db-0", IfName: "eth0",
		Addresses: []netip.Addr{first, netip.MustParseAddr("fd00::10")}, Hold: lease.Forever})
	if !errors.As(err, &refused) || refused.Address == first {
		t.Errorf("Reserve: %v, want that the second address is refused", err)
	}
	must.Succeed(t, s.Node.Store.View(t.Context(), func(tx *store.Tx) error {
		if l, err := tx.Get(p, first); l.State != lease.None {
			t.Errorf("the first address is %s, %v, want that none is reserved", l.Describe("", lease.Instant{}), err)
		}
		return nil
	}))
}
