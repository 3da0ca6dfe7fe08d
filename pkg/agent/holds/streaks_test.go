package holds

import (
	"fmt"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
)

// Three passes without an observation, or another one, begin a new streak.
func TestStreaks(t *testing.T) {
	s := streaks{3 * time.Minute, map[kube.Name]streak{}}
	at, pod := time.Unix(1_700_000_000, 0), kube.Name{Namespace: "db", Name: "db-0"}
	for _, c := range []struct {
		after time.Duration
		what  string
		want  time.Duration
	}{
		{0, "node2", 0},
		{time.Minute, "node2", time.Minute},
		{3 * time.Minute, "node2", 4 * time.Minute}, // two passes failed
		{4 * time.Minute, "node2", 0},               // three passes failed
		{time.Minute, "node2", time.Minute},
		{time.Minute, "node3", 0},
		{time.Minute, "node3", time.Minute},
	} {
		at = at.Add(c.after)
		check.Equal(t, s.observe(pod, c.what, at), c.want, "after", c.after)
	}
	s.keep(map[kube.Name][]lease.Lease{pod: {{}}})
	check.Equal(t, s.observe(pod, "node3", at), time.Minute, "it is still held")
	s.keep(nil)
	check.Equal(t, s.observe(pod, "node3", at), 0, "it was not held")
}

// There may be hundreds of pods whose addresses are kept forever: a pass requests some of them, and
// all pods that are claimed or were seen elsewhere.
func TestCandidates(t *testing.T) {
	held := map[kube.Name][]lease.Lease{}
	for i := range 3*maxUnclaimed - 1 {
		held[kube.Name{Namespace: "db", Name: fmt.Sprint("db-", i)}] = []lease.Lease{{Hold: lease.Forever}}
	}
	claimed, seen := kube.Name{Namespace: "db", Name: "web"}, kube.Name{Namespace: "db", Name: "seen"}
	held[claimed], held[seen] = []lease.Lease{{Hold: lease.Window(time.Hour)}}, []lease.Lease{{Hold: lease.Forever}}
	held[kube.Name{Namespace: "db", Name: "away"}] = []lease.Lease{{Hold: lease.Window(time.Hour)}}
	h, times := Task{Named: func() ipamv1.NodeAddressPoolSpec {
		return ipamv1.NodeAddressPoolSpec{Reservations: []ipamv1.ReservationReference{
			{Namespace: "db", Name: "web-5f1c9a02"}, {Namespace: "db", Name: "x"}}}
	}}, map[kube.Name]int{}
	h.begin()
	h.moved.observe(seen, "node2/u2", time.Time{})
	for pass := range 50 {
		pods := h.candidates(held)
		check.Equal(t, len(pods), 2+maxUnclaimed, "pass", pass, "candidates", pods)
		for _, pod := range pods {
			times[pod]++
		}
	}
	if times[claimed] != 50 || times[seen] != 50 || len(times) != len(held)-1 {
		t.Errorf("candidates: %v", times)
	}
}

func TestOrdinalsIn(t *testing.T) {
	for _, c := range []struct{ object, want string }{
		{`{"spec":{"replicas":3}}`, "[0 1 2]"},
		{`{"spec":{}}`, "[0]"},
		{`{"spec":{"replicas":3,"reserveOrdinals":[1,"3-4"]}}`, "[0 2 5]"},
		{`{"spec":{"replicas":3},"metadata":{"deletionTimestamp":"2026-11-21T10:00:00Z"}}`, "[]"},
		{`{"spec":{"replicas":3,"reserveOrdinals":["some"]}}`, "unknown"},
		{`{"spec":`, "unknown"},
	} {
		wanted, err := ordinalsIn([]byte(c.object))
		var ordinals []int64
		for n := range int64(9) {
			if wanted.Has(n) {
				ordinals = append(ordinals, n)
			}
		}
		got := fmt.Sprint(ordinals)
		if err != nil {
			got = "unknown"
		}
		check.Equal(t, got, c.want, c.object)
	}
}
