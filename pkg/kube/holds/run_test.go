package holds

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	ipamv1 "github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/pkg/kube/apitest"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// scene is node1 in a cluster that is played, and the minutes that go by.
type scene struct {
	t      *testing.T
	node   apitest.Node
	server *apitest.Server
	holds  *Holds
	now    time.Time
}

func newScene(t *testing.T) *scene {
	s := &scene{t: t, node: apitest.NewNode(t), server: apitest.New(t), now: time.Unix(1_700_000_000, 0)}
	s.holds = &Holds{Service: s.node.Service, Node: "node1", Clients: s.server.Clients, Log: apitest.Log, MoveGrace: MoveGrace}
	if period := s.holds.begin(); period != time.Minute {
		t.Fatalf("a look every %s", period)
	}
	return s
}

// minutes looks once a minute, n times.
func (s *scene) minutes(n int) {
	for range n {
		s.holds.pass(s.t.Context(), s.now)
		s.now = s.now.Add(time.Minute)
	}
}

func (s *scene) expect(story string, want ...string) {
	s.t.Helper()
	if got := s.node.Leases(); fmt.Sprint(got) != fmt.Sprint(want) {
		s.t.Errorf("%s: left are %v, want %v", story, got, want)
	}
}

// claim is what another node's agent says of db-0.
func (s *scene) claim(object, node, uid string) {
	s.server.Put("/apis/ipam.leasehold.dev/v1alpha1/namespaces/db/ipreservations/"+object, ipamv1.IPReservation{
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: object, Labels: map[string]string{ipamv1.LabelPodHash: ipamv1.Hash("db-0")}},
		Spec:       ipamv1.IPReservationSpec{PodName: "db-0", NodeName: node},
		Status:     ipamv1.IPReservationStatus{State: ipamv1.Bound, Confirmed: true, PodUID: uid},
	})
}

const podPath = "/api/v1/namespaces/db/pods/db-0"

func (s *scene) pod(node, uid string, ready corev1.ConditionStatus) {
	s.server.Put(podPath, corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db-0", UID: types.UID(uid)},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	})
}

// held is what node1 keeps for db-0, and for a pod that has not moved.
func (s *scene) held(window time.Duration, owner string) {
	s.node.Release(s.node.Bind("10.0.0.2", "db-0", "u1", window, owner))
	s.node.Release(s.node.Bind("10.0.0.3", "db-1", "v1", time.Hour, ""))
}

func TestAPodThatMovedTwiceIsLetGo(t *testing.T) {
	// The word of node2, which is down, comes before or behind node3's.
	for _, stale := range []string{"db-0-a", "db-0-z"} {
		s := newScene(t)
		s.held(time.Hour, "")
		s.claim(stale, "node2", "u2")
		s.claim("db-0-m", "node3", "u3")
		s.pod("node3", "u3", corev1.ConditionTrue)
		s.minutes(5)
		s.expect("before moveGrace", "10.0.0.2=db-0/Held", "10.0.0.3=db-1/Held")
		s.minutes(1)
		s.expect("after moveGrace", "10.0.0.3=db-1/Held")
	}
}

func TestWhoeverIsNotCertainlyElsewhereKeepsItsHold(t *testing.T) {
	for story, set := range map[string]func(*scene){
		"nobody claims it":        func(s *scene) { s.pod("node2", "u2", corev1.ConditionTrue) },
		"the pod is gone":         func(s *scene) { s.claim("o", "node2", "u2") },
		"the pod is not Ready":    func(s *scene) { s.claim("o", "node2", "u2"); s.pod("node2", "u2", corev1.ConditionFalse) },
		"another pod of the name": func(s *scene) { s.claim("o", "node2", "u2"); s.pod("node2", "u3", corev1.ConditionTrue) },
		"it is on a third node":   func(s *scene) { s.claim("o", "node2", "u2"); s.pod("node3", "u2", corev1.ConditionTrue) },
		"it is back here":         func(s *scene) { s.claim("o", "node2", "u2"); s.pod("node1", "u2", corev1.ConditionTrue) },
		"reservations are refused": func(s *scene) {
			s.claim("o", "node2", "u2")
			s.pod("node2", "u2", corev1.ConditionTrue)
			s.server.Refuse(only("/ipreservations", 503))
		},
		"pods are refused": func(s *scene) {
			s.claim("o", "node2", "u2")
			s.pod("node2", "u2", corev1.ConditionTrue)
			s.server.Refuse(only("/pods/", 403))
		},
	} {
		s := newScene(t)
		s.held(time.Hour, "")
		set(s)
		s.minutes(20)
		s.expect(story, "10.0.0.2=db-0/Held", "10.0.0.3=db-1/Held")
	}
}

// notServed is the answer where Kruise is not installed: it is no Status.
func notServed(r *http.Request) int {
	if strings.Contains(r.URL.Path, "/statefulsets/") {
		return apitest.NotServed
	}
	return 0
}

// only refuses what has a word in its path.
func only(word string, code int) func(*http.Request) int {
	return func(r *http.Request) int {
		if strings.Contains(r.URL.Path, word) {
			return code
		}
		return 0
	}
}

func TestALookThatFailsNeitherCountsNorBeginsAnew(t *testing.T) {
	s := newScene(t)
	s.held(time.Hour, "")
	s.claim("o", "node2", "u2")
	s.pod("node2", "u2", corev1.ConditionTrue)
	s.minutes(3)
	s.server.Refuse(apitest.Always(500))
	s.minutes(2)
	s.server.Refuse(nil)
	s.expect("two looks failed", "10.0.0.2=db-0/Held", "10.0.0.3=db-1/Held")
	s.minutes(1)
	s.expect("moveGrace has passed", "10.0.0.3=db-1/Held")
}

// Its annotation was taken away when it moved, so no agent says that it keeps anything for it.
func TestWhatIsKeptForeverGoesWhenThePodLivesElsewhere(t *testing.T) {
	s := newScene(t)
	s.held(lease.Forever, "StatefulSet.apps/db")
	s.set(`{"replicas":1}`)
	s.pod("node2", "u2", corev1.ConditionTrue)
	s.minutes(5)
	s.expect("before moveGrace", "10.0.0.2=db-0/Held", "10.0.0.3=db-1/Held")
	s.minutes(1)
	s.expect("after moveGrace", "10.0.0.3=db-1/Held")
}

// The server's memory may be old: what ends a hold is asked of the store.
func TestAnOldAnswerEndsNoHold(t *testing.T) {
	for story, code := range map[string]int{"the pod is gone": 404, "nobody knows": 503} {
		s := newScene(t)
		s.held(time.Hour, "")
		s.claim("o", "node2", "u2")
		s.pod("node2", "u2", corev1.ConditionTrue)
		var latest atomic.Int32
		s.server.Refuse(func(r *http.Request) int {
			if strings.Contains(r.URL.Path, "/pods/") && r.URL.Query().Get("resourceVersion") != "0" {
				latest.Add(1)
				return code
			}
			return 0
		})
		s.minutes(5)
		if n := latest.Load(); n != 0 {
			t.Errorf("%s: %d looks before moveGrace went past the memory", story, n)
		}
		s.minutes(15)
		if latest.Load() == 0 {
			t.Errorf("%s: the store was never asked", story)
		}
		s.expect(story, "10.0.0.2=db-0/Held", "10.0.0.3=db-1/Held")
	}
}

func TestAPodThatCannotBeAskedForKeepsItsStreakAndTouchesNoOther(t *testing.T) {
	s := newScene(t)
	for i := range 3 {
		s.moved(i)
	}
	s.minutes(4)
	s.server.Refuse(only("/pods/db-1", 500))
	s.minutes(1)
	s.expect("before moveGrace", "10.0.0.2=db-0/Held", "10.0.0.3=db-1/Held", "10.0.0.4=db-2/Held")
	s.minutes(1)
	s.expect("the others have moved", "10.0.0.3=db-1/Held")
	s.server.Refuse(nil)
	s.minutes(1)
	s.expect("its streak went on")
}

// moved is a pod that is kept forever here, and lives on node2.
func (s *scene) moved(i int) {
	name := fmt.Sprint("db-", i)
	s.node.Release(s.node.Bind(fmt.Sprint("10.0.0.", 2+i), name, "u1", lease.Forever, ""))
	s.server.Put("/api/v1/namespaces/db/pods/"+name, corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: "u2"},
		Spec:       corev1.PodSpec{NodeName: "node2"},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	})
}

const setPath = "/apis/apps/v1/namespaces/db/statefulsets/db"

func (s *scene) set(spec string) {
	s.server.Put(setPath, map[string]any{"spec": raw(spec)})
}

type raw string

func (r raw) MarshalJSON() ([]byte, error) { return []byte(r), nil }

func TestWhatIsKeptForeverGoesWhenItsStatefulSetDoesWithoutIt(t *testing.T) {
	for story, c := range map[string]struct {
		change func(*scene)
		goes   bool
	}{
		"scaled down":      {func(s *scene) { s.set(`{"replicas":0}`) }, true},
		"gone":             {func(s *scene) { s.server.Remove(setPath) }, true},
		"its kind is gone": {func(s *scene) { s.server.Refuse(notServed) }, false},
		"wanted":           {func(s *scene) {}, false},
		"of what is written nothing is understood": {func(s *scene) { s.set(`{"replicas":0,"reserveOrdinals":["some"]}`) }, false},
		"nobody answers": {func(s *scene) { s.set(`{"replicas":0}`); s.server.Refuse(only("/statefulsets/", 503)) }, false},
	} {
		s := newScene(t)
		s.held(lease.Forever, "StatefulSet.apps/db")
		s.set(`{"replicas":1}`)
		c.change(s)
		s.minutes(10)
		s.expect(story+", before ten minutes", "10.0.0.2=db-0/Held", "10.0.0.3=db-1/Held")
		s.minutes(1)
		if c.goes {
			s.expect(story, "10.0.0.3=db-1/Held")
		} else {
			s.expect(story, "10.0.0.2=db-0/Held", "10.0.0.3=db-1/Held")
		}
	}
}
