package holds

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
	"github.com/leasehold-cni/leasehold/test/must"
)

// fixture is node1 with a fake API server and a simulated clock.
type fixture struct {
	t      *testing.T
	node   fakeapi.Node
	server *fakeapi.Server
	holds  *Task
	now    time.Time
	named  []ipamv1.ReservationReference
}

func newFixture(t *testing.T) *fixture {
	s := &fixture{t: t, node: fakeapi.NewNode(t), server: fakeapi.New(t), now: time.Unix(1_700_000_000, 0)}
	s.holds = &Task{Node: retention.NewNode(s.node.Service, nil, fakeapi.Log, "node1", s.server.Clients),
		Named:     func() ipamv1.NodeAddressPoolSpec { return ipamv1.NodeAddressPoolSpec{Reservations: s.named} },
		MoveGrace: MoveGrace}
	check.Equal(t, s.holds.begin(), time.Minute, "the time between passes")
	return s
}

// minutes runs n passes, one per minute.
func (s *fixture) minutes(n int) {
	for range n {
		s.holds.pass(s.t.Context(), s.now)
		s.now = s.now.Add(time.Minute)
	}
}

func (s *fixture) expect(name string, want ...string) {
	s.t.Helper()
	check.Equal(s.t, fmt.Sprint(s.node.Leases()), fmt.Sprint(want), name)
}

// claim has the manager name the reservation of db-0 that another node's agent has written.
func (s *fixture) claim() {
	s.named = []ipamv1.ReservationReference{{Namespace: "db", Name: "db-0-5f1c9a02"}}
}

const podsPath = "/api/v1/namespaces/db/pods/"

// pod creates or replaces db-0.
func (s *fixture) pod(node, uid string, ready corev1.ConditionStatus) {
	s.podNamed("db-0", node, uid, ready)
}

func (s *fixture) podNamed(name, node, uid string, ready corev1.ConditionStatus) {
	s.server.Put(podsPath+name, corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID(uid)},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	})
}

// held adds holds for db-0, and for db-1, which has not moved.
func (s *fixture) held(window time.Duration, owner string) {
	s.node.Release(s.node.Bind("10.0.0.2", "db-0", "u1", window, owner))
	s.node.Release(s.node.Bind("10.0.0.3", "db-1", "v1", time.Hour, ""))
}

// change changes the hold of db-0.
func (s *fixture) change(change func(*lease.Lease)) {
	s.node.Update(func(tx *store.Tx) error {
		held, err := tx.ByPod("db", "db-0")
		if err != nil || len(held) != 1 {
			return fmt.Errorf("%v, %w", held, err)
		}
		change(&held[0])
		return tx.Put(held[0].Pool, held[0].Address, held[0])
	})
}

// TestForgottenHolds verifies that what is held forever ends ForeverLimit after the release if the
// pod has no StatefulSet. Day 0 is the day of the release.
func TestForgottenHolds(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		name   string
		limit  time.Duration
		away   time.Duration
		window time.Duration
		owner  string
		ends   bool
	}{
		{name: "away for a month", limit: ForeverLimit, away: 30 * day, window: time.Duration(lease.Forever)},
		{name: "on the last day", limit: ForeverLimit, away: 90*day - time.Minute,
			window: time.Duration(lease.Forever)},
		{name: "after the limit", limit: ForeverLimit, away: 90 * day, window: time.Duration(lease.Forever),
			ends: true},
		{name: "without a limit", away: 900 * day, window: time.Duration(lease.Forever)},
		{name: "with an end of its own", limit: ForeverLimit, away: 90 * day, window: 91 * day},
		{name: "with a StatefulSet", limit: ForeverLimit, away: 90 * day, window: time.Duration(lease.Forever),
			owner: "StatefulSet.apps/db"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newFixture(t)
			s.set(`{"replicas":1}`)
			l := s.node.Release(s.node.Bind("10.0.0.2", "db-0", "u1", c.window, c.owner))
			l.ReleasedAt.Wall, l.ReleasedAt.Boot = l.ReleasedAt.Wall.Add(-c.away), l.ReleasedAt.Boot-c.away
			s.node.Update(func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, l) })
			s.holds.ForeverLimit = c.limit
			s.minutes(1)
			if c.ends {
				s.expect(c.name)
			} else {
				s.expect(c.name, "10.0.0.2=db-0/Held")
			}
		})
	}
}

// The claim may be of a node that is down: the pod itself shows where it runs.
func TestHoldOfAMovedPodEnds(t *testing.T) {
	s := newFixture(t)
	s.held(time.Hour, "")
	s.claim()
	s.pod("node3", "u3", corev1.ConditionTrue)
	s.minutes(5)
	s.expect("before moveGrace", "10.0.0.2=db-0/Held", "10.0.0.3=db-1/Held")
	s.minutes(1)
	s.expect("after moveGrace", "10.0.0.3=db-1/Held")
}

// What an AddressRequest has held stays as long as the request, for a pod that never comes, and for
// one that is elsewhere and that no agent claims.
func TestHoldOfARequestStays(t *testing.T) {
	s := newFixture(t)
	l := s.node.Release(s.node.Bind("10.0.0.2", "db-0", "u1", time.Duration(lease.Forever), "AddressRequest/db/r1"))
	l.UID, l.Holder.ContainerID, l.ReleasedAt.Wall = "", "", l.ReleasedAt.Wall.Add(-2*ForeverLimit)
	l.ReleasedAt.Boot -= 2 * ForeverLimit
	s.node.Update(func(tx *store.Tx) error { return tx.Put(l.Pool, l.Address, l) })
	s.holds.ForeverLimit = ForeverLimit
	s.minutes(1)
	s.expect("for a pod that never comes", "10.0.0.2=db-0/Held")
	s.pod("node2", "u2", corev1.ConditionTrue)
	s.minutes(10)
	s.expect("no agent claims the pod", "10.0.0.2=db-0/Held")
	s.claim()
	s.minutes(6)
	s.expect("another agent claims the pod")
}

func TestHoldStaysUnlessThePodHasMoved(t *testing.T) {
	// Each case changes one thing of a pod that has moved to node2.
	for name, change := range map[string]func(*fixture){
		"no claim":               func(s *fixture) { s.named = nil },
		"the pod does not exist": func(s *fixture) { s.server.Remove(podsPath + "db-0") },
		"the pod is not Ready":   func(s *fixture) { s.pod("node2", "u2", corev1.ConditionFalse) },
		"ready on this node":     func(s *fixture) { s.pod("node1", "u2", corev1.ConditionTrue) },
		"the hold is for a reservation name": func(s *fixture) {
			s.change(func(l *lease.Lease) { l.ReserveAs = "registry" })
		},
		"reading pods fails": func(s *fixture) { s.server.Reject(only("/pods/", http.StatusForbidden)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t)
			s.held(time.Hour, "")
			s.claim()
			s.pod("node2", "u2", corev1.ConditionTrue)
			change(s)
			s.minutes(20)
			s.expect(name, "10.0.0.2=db-0/Held", "10.0.0.3=db-1/Held")
		})
	}
}

// only rejects the requests whose path contains part.
func only(part string, code int) func(*http.Request) int {
	return func(r *http.Request) int {
		if strings.Contains(r.URL.Path, part) {
			return code
		}
		return 0
	}
}

// Passes that fail add nothing to the time for which a pod must have been elsewhere, or its ordinal
// missing.
func TestFailedPassesDoNotCount(t *testing.T) {
	moved := func(s *fixture) {
		s.held(time.Hour, "")
		s.claim()
		s.pod("node2", "u2", corev1.ConditionTrue)
		s.minutes(3)
	}
	db := func(s *fixture) string { return filepath.Join(s.node.Node.Store.Dirs().State, "leases.db") }
	serve := func(s *fixture) error { s.server.Reject(nil); return nil }
	for name, c := range map[string]struct {
		begin       func(*fixture)
		fail, again func(*fixture) error
	}{
		"the API server fails": {moved,
			func(s *fixture) error { s.server.Reject(fakeapi.Always(500)); return nil }, serve},
		"the store cannot be read": {moved,
			func(s *fixture) error { return os.Rename(db(s), db(s)+".away") },
			func(s *fixture) error { return os.Rename(db(s)+".away", db(s)) }},
		"the StatefulSet cannot be read": {
			func(s *fixture) {
				s.held(time.Duration(lease.Forever), "StatefulSet.apps/db")
				s.set(`{"replicas":0}`)
				s.minutes(8)
			},
			func(s *fixture) error { s.server.Reject(only("/statefulsets/", 503)); return nil }, serve},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFixture(t)
			c.begin(s)
			must.Succeed(t, c.fail(s))
			s.minutes(2)
			must.Succeed(t, c.again(s))
			s.expect("two passes failed", "10.0.0.2=db-0/Held", "10.0.0.3=db-1/Held")
			s.minutes(1)
			s.expect("the time has passed", "10.0.0.3=db-1/Held")
		})
	}
}

// The annotation was removed when the pod moved, so no agent claims the pod.
func TestEndlessHoldEndsWithoutAClaim(t *testing.T) {
	s := newFixture(t)
	s.held(time.Duration(lease.Forever), "StatefulSet.apps/db")
	s.set(`{"replicas":1}`)
	s.pod("node2", "u2", corev1.ConditionTrue)
	s.minutes(5)
	s.expect("before moveGrace", "10.0.0.2=db-0/Held", "10.0.0.3=db-1/Held")
	s.minutes(1)
	s.expect("after moveGrace", "10.0.0.3=db-1/Held")
}

// The watch cache may be out of date: the read before a hold ends bypasses it.
func TestHoldStaysIfTheLatestReadDiffers(t *testing.T) {
	for name, code := range map[string]int{"the pod does not exist": 404, "the read fails": 503,
		"another pod runs on another node": 0} {
		s := newFixture(t)
		s.held(time.Hour, "")
		s.claim()
		s.pod("node2", "u2", corev1.ConditionTrue)
		var latest atomic.Int32
		s.server.Reject(func(r *http.Request) int {
			switch {
			case !strings.Contains(r.URL.Path, "/pods/"):
			case r.URL.Query().Get("resourceVersion") == "0":
				s.pod("node2", "u2", corev1.ConditionTrue)
			default:
				s.pod("node3", "u3", corev1.ConditionTrue)
				latest.Add(1)
				return code
			}
			return 0
		})
		s.minutes(5)
		check.Equal(t, latest.Load(), 0, name, "reads before moveGrace bypassed the watch cache")
		s.minutes(15)
		if latest.Load() == 0 {
			t.Errorf("%s: no read bypassed the watch cache", name)
		}
		s.expect(name, "10.0.0.2=db-0/Held", "10.0.0.3=db-1/Held")
	}
}

const setPath = "/apis/apps/v1/namespaces/db/statefulsets/db"

func (s *fixture) set(spec string) {
	s.server.Put(setPath, map[string]any{"spec": raw(spec)})
}

type raw string

func (r raw) MarshalJSON() ([]byte, error) { return []byte(r), nil }

func TestEndlessHoldEndsWithItsOrdinal(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*fixture)
		ends   bool
		unread bool // the log names the StatefulSet
	}{
		"scaled down": {func(s *fixture) { s.set(`{"replicas":0}`) }, true, false},
		"deleted":     {func(s *fixture) { s.server.Remove(setPath) }, true, false},
		"scaled down, of no StatefulSet meanwhile": {func(s *fixture) {
			s.set(`{"replicas":0}`)
			s.minutes(5)
			s.change(func(l *lease.Lease) { l.Owner = "" })
			s.minutes(1)
			s.change(func(l *lease.Lease) { l.Owner = "StatefulSet.apps/db" })
		}, true, false},
		"kind not served": {func(s *fixture) {
			s.server.Reject(only("/statefulsets/", fakeapi.NotServed))
		}, false, true},
		"wanted":       {func(s *fixture) {}, false, false},
		"invalid spec": {func(s *fixture) { s.set(`{"replicas":0,"reserveOrdinals":["some"]}`) }, false, true},
		"reading fails": {func(s *fixture) {
			s.set(`{"replicas":0}`)
			s.server.Reject(only("/statefulsets/", http.StatusServiceUnavailable))
		}, false, true},
	} {
		s, log := newFixture(t), &bytes.Buffer{}
		s.holds.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
		s.held(time.Duration(lease.Forever), "StatefulSet.apps/db")
		s.set(`{"replicas":1}`)
		c.change(s)
		s.minutes(10)
		s.expect(name+", before ten minutes", "10.0.0.2=db-0/Held", "10.0.0.3=db-1/Held")
		s.minutes(1)
		if c.ends {
			s.expect(name, "10.0.0.3=db-1/Held")
		} else {
			s.expect(name, "10.0.0.2=db-0/Held", "10.0.0.3=db-1/Held")
		}
		check.Equal(t, strings.Contains(log.String(), setPath), c.unread, name, "is unread, by the log:", log)
	}
}
