package maintain

import (
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
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
		p := PodWindow{Namespace: "db", Name: "db-0", SetWindow: lease.SetWindow{UID: "u1", Window: l.Window,
			Owner: "o1", NamespaceUID: "n1"}}
		c.change(&p)
		check.Equal(t, Changes(l, p.SetWindow), c.want, name)
	}
}
