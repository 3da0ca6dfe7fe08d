package events

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/kube/apitest"
	"github.com/leasehold-cni/leasehold/pkg/kube/live"
	"github.com/leasehold-cni/leasehold/pkg/kube/nodepods"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// town is a node whose journal is told of, in a cluster that is played.
type town struct {
	*Events
	t      *testing.T
	node   apitest.Node
	server *apitest.Server
}

func newTown(t *testing.T) *town {
	w := &town{t: t, node: apitest.NewNode(t), server: apitest.New(t)}
	w.restart()
	return w
}

// restart begins with an agent that remembers nothing.
func (w *town) restart() {
	w.Events = &Events{Service: w.node.Service, Node: "node1", Client: w.server.Clients.Events, Log: apitest.Log,
		Pods: nodepods.New(w.server.Clients.Core, "node1", apitest.Log)}
}

// kept journals that db-0 came back, so long ago.
func (w *town) kept(n int, ago time.Duration) {
	e := entry(store.EventKept, "db-0", fmt.Sprint("u", n), "10.0.0.2", fmt.Sprint("after ", n, "s"))
	e.Time = time.Now().Add(-ago)
	w.node.Update(func(tx *store.Tx) error { return tx.Log(e) })
}

// told are the texts of the events that the server has, in the order of their pods.
func (w *town) told() (texts []string) {
	w.t.Helper()
	for _, at := range w.server.Paths() {
		var e eventsv1.Event
		w.server.Get(at, &e)
		texts = append(texts, fmt.Sprint(e.Regarding.UID, " ", e.Note))
	}
	slices.Sort(texts)
	return texts
}

func (w *town) expect(story string, want ...string) {
	w.t.Helper()
	var texts []string
	for _, n := range want {
		texts = append(texts, fmt.Sprintf("u%s 10.0.0.2: the pod was away for %ss", n, n))
	}
	if got := w.told(); !slices.Equal(got, texts) {
		w.t.Errorf("%s: told %q, want %q", story, got, texts)
	}
}

func (w *town) tell() time.Duration { return w.pass(context.Background()) }

func TestTheJournalIsToldOnceAndInOrder(t *testing.T) {
	w := newTown(t)
	w.kept(1, time.Hour) // an agent that starts tells what is news
	w.kept(2, time.Minute)
	w.tell()
	w.expect("at the start", "2")
	w.kept(3, 20*time.Minute) // of whatever time, it is new
	w.tell()
	w.expect("a new entry", "2", "3")
	w.server.Asked()
	w.tell()
	if asked := w.server.Asked(); len(asked) > 0 {
		t.Errorf("nothing is new: %q", asked)
	}
	w.restart()
	w.tell()
	w.expect("after a restart", "2", "3") // 2 is told again, under the same name
}

func TestWhatCannotBeToldWaitsInItsOrder(t *testing.T) {
	w := newTown(t)
	w.tell()
	w.server.Refuse(apitest.Always(http.StatusServiceUnavailable))
	w.kept(1, 0)
	w.kept(2, 0)
	for range 3 {
		if again := w.tell(); again != retry {
			t.Errorf("again in %s", again)
		}
	}
	if len(w.waiting) != 2 || w.waiting[0].UID != "u1" {
		t.Errorf("waiting: %+v", w.waiting)
	}
	w.server.Refuse(nil)
	w.kept(3, 0)
	w.tell()
	w.expect("the server is back", "1", "2", "3")

	w.server.Refuse(apitest.Always(http.StatusForbidden))
	w.kept(4, 0)
	if again := w.tell(); again != 0 || len(w.waiting) != 0 {
		t.Errorf("refused for good: again in %s, waiting %+v", again, w.waiting)
	}
	w.server.Refuse(nil)
	w.kept(5, 0)
	w.tell()
	w.expect("and the next", "1", "2", "3", "5")
}

func TestOfWhatWaitsTheOldestGo(t *testing.T) {
	w := newTown(t)
	for i := range maxWaiting + 3 {
		w.queue(Notice{UID: fmt.Sprint(i)})
	}
	if len(w.waiting) != maxWaiting || w.waiting[0].UID != "3" {
		t.Errorf("%d wait, the first is %s", len(w.waiting), w.waiting[0].UID)
	}
}

func TestAWrongAnnotationIsToldOnceForEachWord(t *testing.T) {
	w := newTown(t)
	pod := nodepods.Pod{Name: live.Name{Namespace: "db", Name: "db-0"}, UID: "u1", ObjectUID: "o1", Asked: "soon"}
	for _, word := range []string{"soon", "soon", "later", "soon"} {
		pod.Asked = word
		w.Invalid(pod, errors.New("no window: "+word))
		w.tell()
	}
	if got := w.told(); len(got) != 2 || !strings.Contains(got[0], "later") || !strings.Contains(got[1], "soon") {
		t.Errorf("told %q", got)
	}
}

// A static pod's object has another UID than the one that the runtime knows.
func TestAStaticPodsEventsAreItsObjects(t *testing.T) {
	w := newTown(t)
	mirror := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: "db-0", UID: "object", ResourceVersion: "1",
		Annotations: map[string]string{"kubernetes.io/config.hash": "u1", corev1.MirrorPodAnnotationKey: "u1"}}}
	if err := w.Pods.Replace([]any{mirror}, ""); err != nil {
		t.Fatal(err)
	}
	w.kept(1, 0)
	w.tell()
	if got := w.told(); len(got) != 1 || !strings.HasPrefix(got[0], "object ") {
		t.Errorf("told %q", got)
	}
}
