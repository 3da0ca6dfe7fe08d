package pin

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// patienceOn returns a reconciler, and what it reports.
func patienceOn(c *cluster, writes client.Client) (*patienceReconciler, *[]string) {
	reported := &[]string{}
	return newPatienceReconciler(c, writes, words(reported), logr.Discard()), reported
}

func TestWait(t *testing.T) {
	const patience = 5 * time.Second
	nominated := func(p *podView) { p.Nominated = true }
	type look struct {
		after  time.Duration
		pod    *podView
		ending bool
	}
	for name, tt := range map[string]struct {
		looks []look
		want  time.Duration // after the first look
	}{
		"one look":     {[]look{{0, waits("u1"), false}}, patience},
		"a later look": {[]look{{0, waits("u1"), false}, {3 * time.Second, waits("u1"), false}}, patience},
		"another pod": {[]look{{0, waits("u1"), false}, {3 * time.Second, waits("u2"), false}},
			3*time.Second + patience},
		"while another pod ends": {[]look{{0, waits("u1"), true}, {9 * time.Second, waits("u1"), true},
			{10 * time.Second, waits("u1"), false}}, 9*time.Second + patience},
		"while another pod ends for long": {[]look{{0, waits("u1"), true}, {endingPatience - 1, waits("u1"), true},
			{time.Hour, waits("u1"), true}}, endingPatience - 1 + patience},
		"nominated": {[]look{{0, waits("u1", nominated), false}}, preemptionPatience},
		"nominated for a while": {[]look{{0, waits("u1", nominated), false}, {time.Minute, waits("u1"), false}},
			time.Minute + patience},
		"nominated again and again": {[]look{{0, waits("u1", nominated), false},
			{preemptionPatience - time.Second, waits("u1"), false}}, preemptionPatience},
	} {
		var w podWait
		for _, l := range tt.looks {
			w = w.observe(l.pod, l.ending, noon.Add(l.after))
		}
		check.Equal(t, w.end(patience).Sub(noon), tt.want, name, "it ends after")
	}
	longer := (podWait{}).observe(waits("u1", nominated), false, noon).end(time.Hour).Sub(noon)
	check.Equal(t, longer, time.Hour, "with a longer patience than that for preemption")
}

func TestReplace(t *testing.T) {
	of := func(change func(*podView)) *podView {
		return waits("u1", func(p *podView) { p.Message = "no room" }, change)
	}
	as := func(*podView) {}
	patience := func(d lease.Window) *podView { return of(func(p *podView) { p.Patience = d }) }
	follower := func(c *cluster) { c.isLeader = func() bool { return false } }
	strikes := func(n int) func(*cluster) {
		return func(c *cluster) {
			for i := range n {
				c.strike(waits(types.UID(fmt.Sprint(i))))
			}
		}
	}
	for _, tt := range []struct {
		name  string
		pod   *podView
		setup func(*cluster)
		after time.Duration // when it is deleted; -1 for never
	}{
		{"it waits, and the replica has just started", of(as), nil, 5 * time.Second},
		{"a patience of its own", patience(lease.Window(time.Minute)), nil, time.Minute},
		{"no patience", patience(0), nil, 0},
		{"forever", patience(lease.Forever), nil, -1},
		{"no scheduler has tried it", of(func(p *podView) { p.Unschedulable = false }), nil, -1},
		{"it is only preferred on its node", of(func(p *podView) { p.Pinned = "" }), nil, -1},
		{"it runs", of(func(p *podView) { p.Node = "node1" }), nil, -1},
		{"nothing would create it again", of(func(p *podView) { p.Recreated = false }), nil, -1},
		{"it is being deleted", of(deleting), nil, -1},
		{"a follower", of(as), follower, 6 * time.Second},
		{"after a strike", of(as), strikes(1), 30 * time.Second},
		{"after two strikes", of(as), strikes(2), 5 * time.Minute},
		{"nothing is listed yet", of(as), (*cluster).forget, -1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			clock := noon
			c := clusterOf(t, nil, &clock)
			if tt.setup != nil {
				tt.setup(c)
				clock = clock.Add(time.Second)
			}
			var deletions []string
			r, reported := patienceOn(c, deletes(func(name string, p *metav1.Preconditions) error {
				deletions = append(deletions, fmt.Sprint(name, " ", *p.UID, " ", *p.ResourceVersion))
				return nil
			}))
			c.add(t, tt.pod)
			began, counted := clock, testutil.ToFloat64(replacements)
			deleted := time.Duration(-1)
			for clock.Sub(began) <= strikeLife+10*time.Second && deleted < 0 {
				result, err := r.Reconcile(t.Context(), request("db-0"))
				must.Succeed(t, err)
				if len(deletions) > 0 {
					deleted = clock.Sub(began)
				} else if result.RequeueAfter == 0 {
					break
				}
				clock = clock.Add(result.RequeueAfter)
			}
			late := deleted - tt.after
			if (deleted < 0) != (tt.after < 0) || late < 0 || late > 2*recheckInterval {
				t.Errorf("deleted after %s, want %s", deleted, tt.after)
			}
			if deleted < 0 {
				return
			}
			check.Slices(t, deletions, []string{"db-0 u1 7"}, "deletions")
			want := "db-0 PodReplaced: deleted after it waited " + deleted.Round(time.Second).String() +
				" for node1; its successor may run elsewhere: no room"
			check.Slices(t, *reported, []string{want})
			check.Equal(t, testutil.ToFloat64(replacements), counted+1, "the metric")
			c.remove(t, tt.pod)
			if _, err := r.Reconcile(t.Context(), request("db-0")); err != nil || len(r.waits) > 0 {
				t.Errorf("it remembers %v, %v", r.waits, err)
			}
		})
	}
}

// What the API server answers to a deletion.
func TestReplaceFails(t *testing.T) {
	for code, fails := range map[int]bool{http.StatusConflict: false, http.StatusNotFound: false,
		http.StatusForbidden: true, http.StatusInternalServerError: true} {
		clock, counted := noon, testutil.ToFloat64(replacements)
		p := waits("u1", func(p *podView) { p.Patience = 0 })
		r, reported := patienceOn(clusterOf(t, nil, &clock, p), deletes(func(string, *metav1.Preconditions) error {
			return apierrors.NewGenericServerResponse(code, "DELETE", corev1.Resource("pods"), "db-0", "", 0, true)
		}))
		_, err := r.Reconcile(t.Context(), request("db-0"))
		if (err != nil) != fails || len(*reported) > 0 || testutil.ToFloat64(replacements) != counted {
			t.Errorf("%d: %v, reported %q", code, err, *reported)
		}
	}
}

// Twenty pods wait for a node. Three replicas delete at most ten of them in a second.
func TestRateOfDeletions(t *testing.T) {
	for isLeader, most := range map[bool]int{true: 8, false: 1} {
		clock, deleted := noon, 0
		c := clusterOf(t, nil, &clock)
		c.isLeader = func() bool { return isLeader }
		r, _ := patienceOn(c, deletes(func(name string, _ *metav1.Preconditions) error {
			deleted++
			c.remove(t, c.pod("db/"+name))
			return nil
		}))
		name := func(i int) string { return fmt.Sprint("db-", i) }
		for i := range 20 {
			c.add(t, waits(types.UID(name(i)), func(p *podView) { p.Name = name(i) }))
		}
		for step := range 11 {
			for i := range 20 {
				_, err := r.Reconcile(t.Context(), request(name(i)))
				must.Succeed(t, err)
			}
			if clock = clock.Add(time.Second / 10); step == 0 {
				clock = noon.Add(time.Minute) // the patience of all is over
			}
		}
		check.Between(t, deleted, 1, most, "leader", isLeader)
	}
}

// deleter is a client that can only delete.
type deleter struct {
	client.Client
	delete func(name string, p *metav1.Preconditions) error
}

func deletes(f func(name string, p *metav1.Preconditions) error) client.Client {
	return deleter{delete: f}
}

func (d deleter) Delete(_ context.Context, o client.Object, options ...client.DeleteOption) error {
	return d.delete(o.GetName(), (&client.DeleteOptions{}).ApplyOptions(options).Preconditions)
}

// TestDeletionsAreBounded has a node that does not accept a pod, although each of its successors is
// pinned there again. Replicas see what happens a while later, and restart. The pod is deleted at
// most three times in ten minutes, and twice more for each restart, but each one in time.
func TestDeletionsAreBounded(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := &chain{t: t, clock: noon, pod: runs("u0")}
		s.lag = time.Duration(rapid.IntRange(0, 2).Draw(rt, "lag")) * time.Second
		count := rapid.IntRange(1, 3).Draw(rt, "replicas")
		restart := make([]time.Duration, count) // each replica restarts once, or not at all
		for i := range count {
			s.replicas = append(s.replicas, s.start(i))
			restart[i] = time.Duration(rapid.IntRange(0, 1500).Draw(rt, "restart")) * time.Second
		}
		must.Succeed(t, s.delete("u0")) // by its user
		for ; s.clock.Sub(noon) < 20*time.Minute; s.clock = s.clock.Add(time.Second) {
			for i, r := range s.replicas {
				if s.clock.Sub(noon) == restart[i] {
					s.replicas[i] = s.start(i)
					s.leader = (i + 1) % count
				}
				s.show(r)
				_, err := r.Reconcile(t.Context(), request("db-0"))
				must.Succeed(t, err)
			}
			s.create()
		}
		for i, at := range s.deleted {
			most := 3
			for _, after := range restart {
				if age := at.Sub(noon.Add(after)); age >= 0 && age < 10*time.Minute {
					most += 2
				}
			}
			if i >= most && at.Sub(s.deleted[i-most]) < 10*time.Minute {
				rt.Fatalf("%d deletions within %s: %v", most+1, at.Sub(s.deleted[i-most]), s.deleted)
			}
		}
		if len(s.deleted) < 2 {
			rt.Fatalf("deleted %d times in 20 minutes", len(s.deleted))
		}
	})
}

// chain is a StatefulSet whose pod is pinned to a full node each time.
type chain struct {
	t        *testing.T
	clock    time.Time
	lag      time.Duration // how much later replicas see what happens
	pod      *podView      // nil between two pods
	next     int
	replicas []chainReplica
	leader   int
	deleted  []time.Time // except by the user
	shown    []shown
}

// A chainReplica sees what happens after it has started.
type chainReplica struct {
	*patienceReconciler
	started time.Time
}

// shown is what the watch shows at a time: a pod, or its deletion.
type shown struct {
	at   time.Time
	pod  *podView
	gone bool
}

// start starts a replica, which lists what is there.
func (s *chain) start(i int) chainReplica {
	c := clusterOf(s.t, nil, &s.clock)
	c.isLeader = func() bool { return s.leader == i }
	if s.pod != nil {
		c.add(s.t, s.pod)
	}
	r, _ := patienceOn(c, deletes(func(_ string, p *metav1.Preconditions) error {
		err := s.delete(*p.UID)
		if err == nil {
			s.deleted = append(s.deleted, s.clock)
		}
		return err
	}))
	return chainReplica{r, s.clock}
}

// show has the watch of a replica show what it has not seen.
func (s *chain) show(r chainReplica) {
	for _, e := range s.shown {
		if s.clock.Sub(e.at) < s.lag || e.at.Before(r.started) {
			continue
		}
		now := r.cluster.pod("db/db-0")
		switch {
		case e.gone && now != nil && now.UID == e.pod.UID:
			r.cluster.remove(s.t, e.pod)
		case !e.gone && s.pod != nil && e.pod.UID == s.pod.UID && (now == nil || now.UID != e.pod.UID):
			r.cluster.add(s.t, e.pod)
		}
	}
}

func (s *chain) delete(uid types.UID) error {
	if s.pod == nil || s.pod.UID != uid {
		return apierrors.NewNotFound(corev1.Resource("pods"), "db-0")
	}
	s.shown = append(s.shown, shown{s.clock, s.pod, true})
	s.pod = nil
	return nil
}

// create creates the next pod, which the scheduler cannot place.
func (s *chain) create() {
	if s.pod == nil {
		s.next++
		s.pod = waits(types.UID(fmt.Sprint("next-", s.next)))
		s.pod.ResourceVersion = fmt.Sprint(100 + s.next)
		s.shown = append(s.shown, shown{s.clock, s.pod, false})
	}
}

func TestStrikes(t *testing.T) {
	clock := noon
	c := clusterOf(t, nil, &clock)
	c.strike(waits("u1"))
	c.strike(waits("u1"))
	clock = clock.Add(time.Minute)
	c.strike(waits("u2"))
	for _, tt := range []struct {
		after time.Duration
		want  int
	}{{-1, 0}, {0, 1}, {time.Minute - 1, 1}, {time.Minute, 2}} {
		check.Equal(t, c.strikesUntil("db/db-0", noon.Add(tt.after)), tt.want, "before", tt.after)
	}
	clock = noon.Add(strikeLife)
	check.Equal(t, c.strikesUntil("db/db-0", clock), 1, "after the life of the first one")
	clock = clock.Add(time.Minute)
	check.Equal(t, c.strikesUntil("db/db-0", clock), 0, "after the life of both")
	for i := range maxStrikeKeys + maxStrikes {
		c.strike(waits("u", func(p *podView) { p.Name = fmt.Sprint(i) }))
		c.strike(waits(types.UID(fmt.Sprint(i)), func(p *podView) { p.Name = "last" }))
	}
	if n, of := len(c.strikes.Keys()), len(c.strikesOf("db/last")); n > maxStrikeKeys || of > maxStrikes {
		t.Errorf("it remembers %d keys, and %d strikes of one", n, of)
	}
}
