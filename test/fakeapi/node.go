package fakeapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/must"
	"github.com/leasehold-cni/leasehold/test/ownproc"
)

// Boot is the boot id of a Node.
const Boot = "boot-1"

// Log discards all messages.
var Log = slog.New(slog.DiscardHandler)

// Node is a node with a real store, whose host is the real kernel with another boot id.
type Node struct {
	*maintain.Service
	Pool lease.Pool

	t testing.TB
}

// NewNode returns a node whose store was written from the network namespace of the test, so that
// the agent trusts its view of the host. Its clock stands still.
func NewNode(t testing.TB) Node {
	dir := t.TempDir()
	boot := filepath.Join(dir, "boot_id")
	must.Succeed(t, os.WriteFile(boot, []byte(Boot+"\n"), 0o600))
	now := lease.Instant{Wall: time.Now(), Boot: time.Hour, BootID: Boot}
	service := &maintain.Service{Node: &operation.Node{
		Store: store.New(store.Dirs{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}),
		Host:  host.New(ownproc.Dir(t), boot),
		Clock: func() lease.Instant { return now },
	}}
	n := Node{t: t, Pool: lease.Pool{DataDir: filepath.Join(dir, "networks"), Network: "net"}, Service: service}
	// as ADD does
	n.Update(func(tx *store.Tx) error {
		return errors.Join(tx.SetNamespaceIDs(n.Node.Host.NamespaceIDs(Boot)), tx.SetImported(n.Pool))
	})
	return n
}

// Update runs a transaction in the store.
func (n Node) Update(fn func(*store.Tx) error) {
	n.t.Helper()
	must.Succeed(n.t, n.Node.Store.Update(context.Background(), fn))
}

// Bind gives an address to a pod of namespace db, one minute ago. Its sandbox cannot be found on
// the host.
func (n Node) Bind(addr, pod, uid string, window time.Duration, owner string) lease.Lease {
	n.t.Helper()
	then := n.Node.Clock()
	then.Wall, then.Boot = then.Wall.Add(-time.Minute), then.Boot-time.Minute
	a := netip.MustParseAddr(addr)
	l, err := lease.Apply(lease.Lease{}, lease.Bind{Lease: lease.Lease{
		ID:   fmt.Sprintf("00112233445566%02x", a.As4()[3]),
		Pool: n.Pool, Address: a, Set: "s", Namespace: "db", Name: pod, UID: uid,
		Window: lease.Window(window), CoolDown: time.Minute,
		Holder: lease.Holder{ContainerID: "c-" + uid, IfName: "eth0", BootID: Boot,
			Netns: lease.Netns{Path: "/does-not-exist", Dev: 4, Ino: 5}},
	}}, then)
	must.Succeed(n.t, err)
	l.Owner = owner
	n.Update(func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, l) })
	return l
}

// Release releases a lease, as DEL does.
func (n Node) Release(l lease.Lease) lease.Lease {
	n.t.Helper()
	held, err := lease.Apply(l, lease.Release{Holder: l.Holder}, n.Node.Clock())
	must.Succeed(n.t, err)
	n.Update(func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, held) })
	return held
}

// Leases returns the addresses that are Bound or held, such as "10.0.0.2=db-0/Held".
func (n Node) Leases() (leases []string) {
	n.t.Helper()
	view, err := n.List(context.Background(), func(l lease.Lease) bool { return l.State == lease.Bound || l.IsHold })
	must.Succeed(n.t, err)
	for _, l := range view.Leases {
		leases = append(leases, l.Address.String()+"="+l.Name+"/"+l.State.String())
	}
	return leases
}
