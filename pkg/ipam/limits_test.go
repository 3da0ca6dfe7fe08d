package ipam

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

func (w *world) setLimits(limits policy.Limits) {
	w.t.Helper()
	if err := w.service.SetLimits(context.Background(), limits); err != nil {
		w.t.Fatal(err)
	}
}

// Each namespace has its own limit of addresses, of a number or a share of the range set. A hold
// beyond it is a short one, and the journal says so.
func TestLimitsOfNamespaces(t *testing.T) {
	for limit, reason := range map[string]string{
		"maxHeld 2":         "2 addresses held, and its limit is 2",
		"maxHeldShare 0.25": "2 of 8 addresses held, and its limit is a share of 0.25",
	} {
		var key, value string
		if _, err := fmt.Sscan(limit, &key, &value); err != nil {
			t.Fatal(err)
		}
		w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.9")
		w.add(ask{pod: "x", namespace: "web", container: "x", window: hour}) // a store
		w.setLimits(policy.Limits{key: "1", "db." + key: value})
		for i := range 3 {
			w.add(ask{pod: fmt.Sprint("db-", i), container: fmt.Sprint("c", i), window: hour})
		}
		for i := range 3 {
			w.stop(fmt.Sprint("c", i))
		}
		w.stop("x")
		w.same(limit, w.leases(), "10.0.0.2=x/Firm 10.0.0.3=db-0/Firm 10.0.0.4=db-1/Firm 10.0.0.5=db-2/Held")
		w.same("journal", w.journal()[len(w.journal())-2],
			"Limited db-2: namespace db has "+reason+": the hold is a short one")
	}
}

// A boot turns all leases into holds, which no limit of a namespace refuses, be they noticed by the
// first call or by a DEL of the former boot's container.
func TestHoldsOfABootAreExemptFromLimits(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	for i := range 3 {
		w.add(ask{pod: fmt.Sprint("db-", i), container: fmt.Sprint("c", i), window: hour})
	}
	w.setLimits(policy.Limits{"maxHeld": "0"})
	w.reboot()
	w.del("c0")
	w.add(ask{pod: "db-9", container: "c9", window: hour})
	w.stop("c9")
	w.same("after the boot", w.leases(),
		"10.0.0.2=db-0/Firm 10.0.0.3=db-1/Firm 10.0.0.4=db-2/Firm 10.0.0.5=db-9/Held")
}

// The result of an ADD and the journal say why the window is shorter than the pod asks for.
func TestReasonOfAShorterWindow(t *testing.T) {
	for want, change := range map[string]func(w *world){
		"": func(*world) {},
		"the window of 1h0m0s is cut to maxWindow 1m0s": func(w *world) {
			w.options.MaxWindow = lease.Window(time.Minute)
		},
		"maxHeldShare is 0: nothing is held": func(w *world) { w.options.MaxHeldShare = 0 },
		"the window of 1h0m0s is cut to 30m0s, the limit of namespace db": func(w *world) {
			w.setLimits(policy.Limits{"db.maxWindow": "30m"})
		},
	} {
		w := newWorld(t, "10.0.0.0/24")
		w.add(ask{pod: "x", container: "x"})
		change(w)
		r, err := w.tryAdd(ask{pod: "db-0", container: "c1", window: hour})
		if err != nil || strings.Join(r.Notes, "|") != want {
			t.Errorf("notes %q, %v, want %q", r.Notes, err, want)
		}
		entries := []string{"Bound x: ", "Bound db-0: "}
		if want != "" {
			entries = append(entries, "Limited db-0: "+want)
		}
		w.same("journal", strings.Join(w.journal(), "|"), strings.Join(entries, "|"))
	}
}

// The plugin cuts windows that are longer than the namespace's limit, without an agent.
func TestWindowsAreCutToTheLimitOfTheNamespace(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "x", namespace: "web", container: "x"})
	w.setLimits(policy.Limits{"db.maxWindow": "30m"})
	w.add(ask{pod: "db-0", container: "c1", window: time.Duration(lease.Forever)})
	w.same("journal", w.journal()[len(w.journal())-1],
		"Limited db-0: the window of forever is cut to 30m0s, the limit of namespace db")
	entries := len(w.journal())
	again := maintain.PodWindow{Namespace: "db", Name: "db-0", UID: "uid-of-c1", Window: lease.Window(hour / 2),
		Limited:      "again",
		NamespaceUID: "ns1"}
	if err := w.service.Follow(context.Background(), []maintain.PodWindow{again}); err != nil {
		t.Fatal(err)
	}
	if more := w.journal()[entries:]; len(more) > 0 {
		t.Errorf("the agent says it again: %q", more)
	}
	w.stop("c1")
	w.after(hour / 2)
	w.add(ask{pod: "y", namespace: "web", container: "y", window: time.Duration(lease.Forever)})
	w.stop("y")
	w.same("half an hour later", w.leases(), "10.0.0.2=x/Bound 10.0.0.4=y/Firm")
	w.setLimits(nil)
	w.add(ask{pod: "db-1", container: "c2", window: time.Duration(lease.Forever)})
	w.stop("c2")
	w.after(24 * hour)
	w.same("without limits", w.leases(), "10.0.0.2=x/Bound 10.0.0.4=y/Firm 10.0.0.5=db-1/Firm")
}
