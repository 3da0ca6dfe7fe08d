package pin

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNotPossible(t *testing.T) {
	for reason, want := range map[string]string{
		"":                                    "",
		"Reserved: node1 has 10.0.0.7":        "",
		"NoReservation: no address waits":     "",
		"NotWanted: the pin mode is none":     "",
		"NodeCordoned: node1 is cordoned":     "not pinned: node1 is cordoned",
		"Attention: call this number":         "",
		"Unknown: it could not be looked: up": "not pinned: it could not be looked: up",
	} {
		if got := notPossible(&podView{Reason: reason}); got != want {
			t.Errorf("%q: %q, want %q", reason, got, want)
		}
	}
}

func TestChanged(t *testing.T) {
	home := &reservation{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}, Node: "node1", PodUID: "u0",
		Until: noon.Add(time.Minute), Addresses: "10.0.0.7"}
	own := &reservation{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "2"}, Node: "node2", PodUID: "u1", Bound: true}
	lapsed := &reservation{Node: "node1", PodUID: "u0", Until: noon}
	pod := func(node, reason string) *podView {
		return &podView{ObjectMeta: metav1.ObjectMeta{UID: "u1"}, Node: node, Pinned: "node1", Reason: reason}
	}
	unpinned := pod("node2", "NodeCordoned: node1 is cordoned")
	unpinned.Pinned = ""
	tests := []struct {
		story string
		pod   *podView
		all   []*reservation
		last  instance
		want  string
	}{
		{"at home", pod("node1", ""), []*reservation{home}, instance{}, ""},
		{"at an earlier home, which has kept another address", pod("node2", "NodeTainted: node1 has a taint"),
			[]*reservation{home,
				{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "0"}, Node: "node2", PodUID: "u-1",
					Until:     noon.Add(time.Minute),
					Addresses: "10.0.1.1"}}, instance{},
			"started on node2, but node1 has kept 10.0.0.7: it did not pass the scheduler's filters there"},
		{"nothing was kept", pod("node2", ""), nil, instance{}, ""},
		{"its own new lease is published already", pod("node2", ""), []*reservation{own}, instance{}, ""},
		{"nothing is kept any more", unpinned, []*reservation{lapsed}, instance{}, ""},
		{"not pinned", unpinned, []*reservation{home, own}, instance{},
			"started on node2, but node1 has kept 10.0.0.7: node1 is cordoned"},
		{"seen on another node a moment ago", unpinned, nil,
			instance{Node: "node1", Started: true, Addresses: "10.0.0.8", Ended: noon, Until: noon.Add(time.Minute)},
			"started on node2, but node1 has kept 10.0.0.8: node1 is cordoned"},
		{"seen on this node a moment ago", pod("node2", ""), nil,
			instance{Node: "node2", Started: true, Addresses: "10.0.0.8", Ended: noon,
				Until: noon.Add(time.Minute)}, ""},
		{"pinned without effect", pod("node2", "Reserved: nominate node1, which has 10.0.0.7"), []*reservation{home},
			instance{}, "started on node2, but node1 has kept 10.0.0.7: it did not pass the scheduler's filters there"},
		{"preferred without effect", pod("node2", "Reserved: prefer node1, which has 10.0.0.7"), []*reservation{home},
			instance{},
			"started on node2, but node1 has kept 10.0.0.7: it did not pass the scheduler's filters there, " +
				"or other nodes had a higher score"},
	}
	for _, tt := range tests {
		t.Run(tt.story, func(t *testing.T) {
			if got := changed(tt.pod, tt.all, tt.last, noon); got != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}
