package ipam

import (
	"context"
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

// The result of an ADD and the journal say why the window is shorter than the pod asks for.
func TestReasonOfAShorterWindow(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *world)
		window time.Duration
		reason string
	}{
		"no limit": {func(*world) {}, hour, ""},
		"maxWindow": {func(w *world) { w.options.MaxWindow = lease.Window(time.Minute) }, time.Minute,
			"the window of 1h0m0s is cut to maxWindow 1m0s"},
		"maxWindow, not reached": {func(w *world) { w.options.MaxWindow = lease.Window(hour) }, hour, ""},
		"no holds": {func(w *world) { w.options.MaxHeldShare = 0 }, 0,
			"maxHeldShare is 0: nothing is held"},
		"a limit of the namespace": {func(w *world) { w.setLimits(policy.Limits{"db.maxWindow": "30m"}) }, hour / 2,
			"the window of 1h0m0s is cut to 30m0s, the limit of namespace db"},
	} {
		w := newWorld(t, "10.0.0.0/24")
		w.add(ask{pod: "x", container: "x"})
		c.change(w)
		r, err := w.tryAdd(ask{pod: "db-0", container: "c1", window: hour})
		if l := w.leaseOf("db-0"); err != nil || strings.Join(r.Notes, "|") != c.reason ||
			l.Window != lease.Window(c.window) {
			t.Errorf("%s: window %s, notes %q, %v; want %s, %q", name, l.Window, r.Notes, err, c.window, c.reason)
		}
		entries := []string{"Bound x: ", "Bound db-0: "}
		if c.reason != "" {
			entries = append(entries, "Limited db-0: "+c.reason)
		}
		w.same(name+": journal", strings.Join(w.journal(), "|"), strings.Join(entries, "|"))
		r, err = w.tryAdd(ask{pod: "db-1", container: "c2"})
		if err != nil || len(r.Notes) > 0 || w.leaseOf("db-1").Window != 0 {
			t.Errorf("%s: a pod without a window: notes %q, %v", name, r.Notes, err)
		}
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
