package events

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/leasehold-cni/leasehold/pkg/agent/retention"
	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/fakeapi"
	"github.com/leasehold-cni/leasehold/test/must"
)

// eventsFixture is a node with a journal, and a fake API server.
type eventsFixture struct {
	*Task
	t      *testing.T
	node   fakeapi.Node
	server *fakeapi.Server
}

func newEventsFixture(t *testing.T) *eventsFixture {
	w := &eventsFixture{t: t, node: fakeapi.NewNode(t), server: fakeapi.New(t)}
	w.restart()
	return w
}

// restart starts an agent without state.
func (w *eventsFixture) restart() {
	w.Task = &Task{Node: retention.NewNode(w.node.Service, nil, fakeapi.Log, "node1", w.server.Clients)}
}

// kept adds a journal entry: db-0 came back to its address, ago before now.
func (w *eventsFixture) kept(n int, ago time.Duration) {
	e := entry(store.EventKept, "db-0", fmt.Sprint("u", n), "10.0.0.2", fmt.Sprint("after ", n, "s"))
	e.Time = time.Now().Add(-ago)
	w.node.Update(func(tx *store.Tx) error { return tx.Log(e) })
}

// created returns the sorted notes of the Events that the server has.
func (w *eventsFixture) created() (texts []string) {
	w.t.Helper()
	for _, at := range w.server.Paths() {
		var e eventsv1.Event
		w.server.Get(at, &e)
		texts = append(texts, fmt.Sprint(e.Regarding.UID, " ", e.Note))
	}
	slices.Sort(texts)
	return texts
}

func (w *eventsFixture) expect(name string, want ...string) {
	w.t.Helper()
	var texts []string
	for _, n := range want {
		texts = append(texts, fmt.Sprintf("u%s kept 10.0.0.2: the pod was away for %ss", n, n))
	}
	check.Slices(w.t, w.created(), texts, name, "created")
}

func (w *eventsFixture) runPass() time.Duration { return w.pass(context.Background()) }

func TestJournalIsReportedOnceInOrder(t *testing.T) {
	w := newEventsFixture(t)
	w.kept(1, time.Hour) // older than maxAge
	w.kept(2, time.Minute)
	w.runPass()
	w.expect("at the start", "2")
	w.kept(3, 20*time.Minute) // an entry written after the start is reported at any age
	w.runPass()
	w.expect("a new entry", "2", "3")
	w.server.Requests()
	w.runPass()
	check.Empty(t, w.server.Requests(), "requests without a new entry")
	w.restart()
	w.runPass()
	w.expect("after a restart", "2", "3") // 2 is created again, under the same name
}

func TestFailedEventsStayQueued(t *testing.T) {
	w := newEventsFixture(t)
	w.runPass()
	w.server.Reject(fakeapi.Always(http.StatusServiceUnavailable))
	w.kept(1, 2*maxRetry) // however long the server is away
	w.kept(2, 0)
	for range 3 {
		check.Between(t, w.runPass(), retry, 2*retry)
	}
	w.server.Reject(nil)
	w.kept(3, 0)
	w.runPass()
	w.expect("the server is available again", "1", "2", "3")

	w.server.Reject(fakeapi.Always(http.StatusForbidden))
	w.kept(4, 0)
	if requeueAfter := w.runPass(); requeueAfter != 0 || len(w.queue) != 0 {
		t.Errorf("forbidden: requeue after %s, queue %+v", requeueAfter, w.queue)
	}
	w.server.Reject(nil)
	w.kept(5, 0)
	w.runPass()
	w.expect("the next entry", "1", "2", "3", "5")
}

// TestFailedEventDoesNotBlockOthers verifies that an Event that the API server cannot create delays
// no other one, that this is logged, and that it is dropped after maxRetry.
func TestFailedEventDoesNotBlockOthers(t *testing.T) {
	for _, status := range []int{http.StatusInternalServerError, http.StatusUnauthorized, fakeapi.NotServed} {
		w := newEventsFixture(t)
		w.kept(0, 0)
		var log strings.Builder
		w.Log = slog.New(slog.NewTextHandler(&log, nil))
		w.runPass()
		w.server.Reject(func(r *http.Request) int {
			if body, err := io.ReadAll(r.Body); err != nil || strings.Contains(string(body), "away for 1s") {
				return status
			} else {
				r.Body = io.NopCloser(bytes.NewReader(body))
			}
			return 0
		})
		w.kept(1, 0)
		w.kept(2, 0)
		w.runPass()
		w.expect(fmt.Sprint("in the pass of a failure ", status), "0", "2")
		for range 3 {
			check.Between(t, w.runPass(), retry, 2*retry, status)
		}
		w.expect(fmt.Sprint("beside a failure ", status), "0", "2")
		w.queue[0].EventTime.Time = time.Now().Add(-maxRetry)
		if requeueAfter := w.runPass(); requeueAfter != 0 || len(w.queue) != 0 {
			t.Errorf("%d after maxRetry: requeue after %s, queue %+v", status, requeueAfter, w.queue)
		}
		check.Equal(t, strings.Count(log.String(), "level=WARN"), 1, status, "warnings after maxRetry", &log)
	}
}

// The API server accepts no reportingInstance of more than 128 bytes, and the policy for the
// agent's Events demands the start of the node's name.
func TestEventsOfANodeWithALongName(t *testing.T) {
	w := newEventsFixture(t)
	w.Name = strings.Repeat("n", 253)
	w.server.Reject(func(r *http.Request) int {
		var e eventsv1.Event
		if json.NewDecoder(r.Body).Decode(&e) != nil || e.ReportingInstance != w.Name[:128] {
			return http.StatusUnprocessableEntity
		}
		body, err := json.Marshal(e)
		must.Succeed(t, err)
		r.Body = io.NopCloser(bytes.NewReader(body))
		return 0
	})
	w.kept(1, 0)
	w.runPass()
	w.expect("", "1")
}

func TestInvalidAnnotationIsReportedOncePerValue(t *testing.T) {
	w := newEventsFixture(t)
	for _, value := range []string{"soon", "soon", "later", "soon"} {
		w.Invalid(retention.Pod{Name: kube.Name{Namespace: "db", Name: "db-0"}, UID: "u1", ObjectUID: "o1",
			Invalid: "no window: " + value})
		w.runPass()
	}
	if got := w.created(); len(got) != 2 || !strings.Contains(got[0], "later") || !strings.Contains(got[1], "soon") {
		t.Errorf("created %q", got)
	}
}

// The mirror pod of a static pod has another UID than the one that the runtime passes.
func TestStaticPodEventsRegardTheMirrorPod(t *testing.T) {
	w := newEventsFixture(t)
	mirror := fakeapi.Pod("db-0", "object", "")
	mirror.Annotations = map[string]string{"kubernetes.io/config.hash": "u1", corev1.MirrorPodAnnotationKey: "u1"}
	must.Succeed(t, w.Pods.Replace([]any{mirror}, ""))
	w.kept(1, 0)
	w.runPass()
	w.restart() // its pods are not known yet
	w.runPass()
	if got := w.created(); len(got) != 1 || !strings.HasPrefix(got[0], "object ") {
		t.Errorf("created %q", got)
	}
}

// An Event whose namespace is being deleted can never be created. That is no failure, and it is not
// tried again.
func TestEventOfATerminatingNamespace(t *testing.T) {
	for _, code := range []int{http.StatusForbidden, http.StatusConflict} {
		var requests atomic.Int32
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			requests.Add(1)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
				Status: metav1.StatusFailure, Code: int32(code), Details: &metav1.StatusDetails{
					Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}}})
		}))
		clients, err := kube.NewClients(&rest.Config{Host: server.URL, QPS: -1})
		must.Succeed(t, err)
		w := newEventsFixture(t)
		var log strings.Builder
		w.Clients.Events, w.Log = clients.Events, slog.New(slog.NewTextHandler(&log, nil))
		w.kept(1, 0)
		for range 2 {
			check.Equal(t, w.runPass(), 0, code, "requeue after")
		}
		if requests.Load() != 1 || log.Len() > 0 {
			t.Errorf("%d: %d requests, logged: %s", code, requests.Load(), log.String())
		}
		server.Close()
	}
}
