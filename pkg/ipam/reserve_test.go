package ipam

import (
	"context"
	"fmt"

	"strings"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
)

// names prints the leases with their reservation names: "10.0.0.2=a(registry)/Bound".
func (w *world) names() string {
	var out []string
	for _, l := range w.all() {
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
	}
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
