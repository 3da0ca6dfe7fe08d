package holds

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/live"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

func TestAStreakEndsWithAGap(t *testing.T) {
	s := streaks[string]{gap: 3 * time.Minute}
	at := time.Unix(1_700_000_000, 0)
	for _, c := range []struct {
		after  time.Duration
		unseen bool // somebody looked, and it was not so
		want   time.Duration
	}{
		{after: 0, want: 0},
		{after: time.Minute, want: time.Minute},
		{after: 3 * time.Minute, want: 4 * time.Minute}, // two looks failed
		{after: 4 * time.Minute, want: 0},               // three did
		{after: time.Minute, want: time.Minute},
		{after: time.Minute, unseen: true},
		{after: time.Minute, want: 0},
	} {
		at = at.Add(c.after)
		if c.unseen {
			s.forget(map[string]bool{"another": true})
			continue
		}
		if got := s.saw("db/db-0", at); got != c.want {
			t.Errorf("after %s: %s, want %s", c.after, got, c.want)
		}
	}
}

func TestWhichPodsOtherNodesHave(t *testing.T) {
	object := func(pod, node string, state ipamv1.State, confirmed bool) ipamv1.IPReservation {
		return ipamv1.IPReservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db"},
			Spec:   ipamv1.IPReservationSpec{PodName: pod, NodeName: node},
			Status: ipamv1.IPReservationStatus{State: state, Confirmed: confirmed, PodUID: "u-" + pod}}
	}
	got := Claims("node1", []ipamv1.IPReservation{
		object("there", "node2", ipamv1.Bound, true),
		object("young", "node2", ipamv1.Bound, false),
		object("away", "node2", ipamv1.Held, true),
		object("here", "node1", ipamv1.Bound, true),
		object("there", "node3", ipamv1.Bound, true),
	})
	want := map[live.Name][]place{{Namespace: "db", Name: "there"}: {{"node2", "u-there"}, {"node3", "u-there"}}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(place{})); diff != "" {
		t.Error(diff)
	}
}

// There may be hundreds that are kept forever: a pass asks for some of them, and for every one of which there is a word.
func TestWhoIsAskedFor(t *testing.T) {
	held := map[live.Name][]lease.Lease{}
	for i := range 3*turns - 1 {
		held[live.Name{Namespace: "db", Name: fmt.Sprint("db-", i)}] = []lease.Lease{{Hold: lease.Forever}}
	}
	claimed, seen := live.Name{Namespace: "db", Name: "web"}, live.Name{Namespace: "db", Name: "seen"}
	held[claimed], held[seen] = []lease.Lease{{Hold: time.Hour}}, []lease.Lease{{Hold: lease.Forever}}
	held[live.Name{Namespace: "db", Name: "away"}] = []lease.Lease{{Hold: time.Hour}}
	h, times := Holds{}, map[live.Name]int{}
	for pass := range 3 {
		asked := h.suspects(held, map[live.Name][]place{claimed: {{"node2", "u2"}}}, map[live.Name]sight{seen: {}})
		if len(asked) != 2+turns {
			t.Errorf("pass %d asks for %v", pass, asked)
		}
		for _, pod := range asked {
			times[pod]++
		}
	}
	if times[claimed] != 3 || times[seen] != 3 || len(times) != len(held)-1 {
		t.Errorf("asked for: %v", times)
	}
}

func TestWhichNumbersAStatefulSetWants(t *testing.T) {
	for _, c := range []struct{ object, want string }{
		{`{"spec":{"replicas":3}}`, "[0 1 2]"},
		{`{"spec":{}}`, "[0]"},
		{`{"spec":{"replicas":0}}`, "[]"},
		{`{"spec":{"replicas":2,"ordinals":{"start":5}}}`, "[5 6]"},
		{`{"spec":{"replicas":3,"reserveOrdinals":[1,"3-4"]}}`, "[0 2 5]"},
		{`{"spec":{"replicas":3},"metadata":{"deletionTimestamp":"2026-11-21T10:00:00Z"}}`, "[]"},
		{`{"spec":{"replicas":3,"reserveOrdinals":["some"]}}`, "unknown"},
		{`{"spec":{"replicas":1,"reserveOrdinals":["0-9000000000000000000"]}}`, "unknown"},
		{`{"spec":{"replicas":1,"reserveOrdinals":["0-2147483646"]}}`, "[]"},
		{`{"spec":`, "unknown"},
	} {
		a := parseSet([]byte(c.object))
		var numbers []int64
		for n := range int64(9) {
			if a.wants.Has(n) {
				numbers = append(numbers, n)
			}
		}
		got := fmt.Sprint(numbers)
		if a.err != nil {
			got = "unknown"
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.object, got, c.want)
		}
	}
}
