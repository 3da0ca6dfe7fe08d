package ipam

import (
	"context"
	"fmt"

	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// named is an ADD of a pod of the reservation name "registry". The pod has the name of its
// container.
func named(pod string) ask {
	return ask{pod: pod, container: pod, window: hour, reserveAs: "registry"}
}

// names prints the leases with their reservation names: "10.0.0.2=a(registry)/Bound".
func (w *world) names() string {
	var out []string
	w.view(func(tx *store.Tx) {
		tx.All(func(l lease.Lease, err error) bool {
			word := l.State.String()
			switch {
			case l.IsHold:
			case l.Leaving:
				word = "Leaving"
			case l.State == lease.Held:
				word = "CoolDown"
			}
			name := l.Name
			if l.ReserveAs != "" {
				name += "(" + l.ReserveAs + ")"
			}
			out = append(out, fmt.Sprintf("%s=%s/%s", l.Address, name, word))
			return true
		})
	})
	return strings.Join(out, " ")
}

func (w *world) leaving(pod string) {
	w.t.Helper()
	w.marks(pod, false)
}

func (w *world) marks(pod string, stays bool) {
	w.t.Helper()
	err := w.service.MarkLeaving(context.Background(),
		[]maintain.LeavingPod{{Namespace: "db", Name: pod, Leave: lease.Leave{UID: "uid-of-" + pod, Stays: stays}}})
	w.must(err)
}

// TestDelsAtOneTimeKeepAPodsAddressesTogether verifies that a pod gets both addresses of one former
// pod, also if those of several were released at the same time.
func TestDelsAtOneTimeKeepAPodsAddressesTogether(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24", "fd00::/64")
	w.add(named("a1"))
	w.add(named("a2"))
	w.reboot()
	w.same("own", w.add(named("a1")), "10.0.0.2,fd00::2")
	w.reboot()
	first, second := w.add(named("b1")), w.add(named("b2"))
	w.same("both", min(first, second)+" "+max(first, second), "10.0.0.2,fd00::2 10.0.0.3,fd00::3")
}

// TestALostStoreKeepsReservationNames verifies that holds come back from the marks in host-local's
// files.
func TestALostStoreKeepsReservationNames(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(named("a1"))
	w.add(named("a2"))
	w.add(named("a3"))
	w.stop("a1")
	w.after(time.Second)
	w.stop("a2")
	w.settle()
	w.same("before", w.names(), "10.0.0.2=a1(registry)/Held 10.0.0.3=a2(registry)/Held 10.0.0.4=a3(registry)/Bound")
	w.wipe(w.storeFile())
	b1 := w.add(named("b1"))
	if b1 != "10.0.0.2" && b1 != "10.0.0.3" {
		t.Errorf("after the loss: %s", b1)
	}
	w.same("after the loss", strings.ReplaceAll(w.names(), "b1(registry)/Bound",
		map[string]string{"10.0.0.2": "a1", "10.0.0.3": "a2"}[b1]+"(registry)/Held"),
		"10.0.0.2=a1(registry)/Held 10.0.0.3=a2(registry)/Held 10.0.0.4=/Bound")
}
