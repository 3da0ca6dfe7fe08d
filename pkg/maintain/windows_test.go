package maintain

import (
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// A lease follows its own pod: the window, the owner, and the UID of the namespace.
func TestFollowsWindow(t *testing.T) {
	l := lease.Lease{State: lease.Bound, Namespace: "db", Name: "db-0", UID: "u1", Window: lease.Window(time.Hour),
		Owner: "o1", NamespaceUID: "n1"}
	for name, c := range map[string]struct {
		change func(p *PodWindow)
		want   bool
	}{
		"as it is":               {func(*PodWindow) {}, false},
		"another window":         {func(p *PodWindow) { p.Window = lease.Window(time.Minute) }, true},
		"another owner":          {func(p *PodWindow) { p.Owner = "o2" }, true},
		"another namespace":      {func(p *PodWindow) { p.NamespaceUID = "n2" }, true},
		"another window and pod": {func(p *PodWindow) { p.UID, p.Window = "u2", lease.Window(time.Minute) }, false},
	} {
		p := PodWindow{Namespace: "db", Name: "db-0", UID: "u1", Window: l.Window, Owner: "o1", NamespaceUID: "n1"}
		c.change(&p)
		if got := FollowsWindow(p, l); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// A spooled DEL is replayed for each lease of its holder; one of an unknown holder too, so that it
// is removed.
func TestReplays(t *testing.T) {
	at := func(d time.Duration) lease.Instant {
		return lease.Instant{Wall: time.Unix(1_700_000_000, 0), Boot: d, BootID: "b"}
	}
	holder := lease.Holder{ContainerID: "c1", IfName: "eth0", BootID: "b"}
	bound := lease.Lease{State: lease.Bound, Holder: holder, BoundAt: at(time.Hour), Name: "db-0"}
	held := bound
	held.State = lease.Held
	other := bound
	other.Holder.ContainerID = "c2"
	for name, c := range map[string]struct {
		leases []lease.Lease
		at     time.Duration
		want   []lease.Lease
	}{
		"bound before":           {[]lease.Lease{other, bound}, 2 * time.Hour, []lease.Lease{bound}},
		"bound at that time":     {[]lease.Lease{bound}, time.Hour, []lease.Lease{bound}},
		"bound again since":      {[]lease.Lease{bound}, time.Minute, []lease.Lease{{}}},
		"held already":           {[]lease.Lease{held}, 2 * time.Hour, []lease.Lease{{}}},
		"of an unknown holder":   {[]lease.Lease{other}, 2 * time.Hour, []lease.Lease{{}}},
		"two leases of a holder": {[]lease.Lease{bound, bound}, 2 * time.Hour, []lease.Lease{bound, bound}},
	} {
		v := Survey{Spooled: []store.Spooled{{ContainerID: "c1", IfName: "eth0", At: at(c.at)}}}
		v.Leases = c.leases
		got := v.replays()
		if len(got) != len(c.want) {
			t.Errorf("%s: %+v", name, got)
			continue
		}
		for i, a := range got {
			if a.Do != Replay || !a.Lease.Holder.Is(holder) || a.Lease.Name != c.want[i].Name || a.Reason == "" {
				t.Errorf("%s: %+v, want a replay for %+v", name, a, c.want[i])
			}
		}
	}
}
