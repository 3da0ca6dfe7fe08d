package reservations

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

func goneNodesOf(set *Set, a *fakeapi.Recorder, clock *time.Time) *goneNodes {
	g := newGoneNodes(set, cached{a.Client}, a.Client, logr.Discard())
	g.now = func() time.Time { return *clock }
	return g
}

func TestGoneNodes(t *testing.T) {
	clock := noon
	a := fakeapi.NewRecorder(t)
	reservation := func(name, node, uid string) *Reservation {
		return &Reservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID("u-" + name),
			ResourceVersion: "1"}, Pod: name, Node: node, NodeUID: uid}
	}
	g := goneNodesOf(setOf(t, reservation("here", "node1", "uid-1"), reservation("gone", "node2", "uid-2"),
		reservation("kept", "node3", "uid-3")), a, &clock)
	a.Answer = func(call string, _ *http.Request) (int, any) {
		switch {
		case strings.HasSuffix(call, "/nodes/node3"): // the cache is late: it exists
			return 0, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
				ObjectMeta: metav1.ObjectMeta{Name: "node3", UID: "uid-3"}}
		case strings.Contains(call, "/nodes/"):
			return http.StatusNotFound, nil
		}
		return 0, nil
	}
	must(t, g.deleteAll(t.Context()))
	clock = clock.Add(nodeGoneAfter - time.Second)
	must(t, g.deleteAll(t.Context()))
	a.Saw(t, "not gone for long")
	clock = clock.Add(time.Second)
	must(t, g.deleteAll(t.Context()))
	slices.Sort(a.Calls)
	gone := "DELETE /apis/ipam.leasehold.dev/v1alpha1/namespaces/db/ipreservations/gone " +
		`{"kind":"DeleteOptions","apiVersion":"ipam.leasehold.dev/v1alpha1","preconditions":{"uid":"u-gone"}}`
	a.Saw(t, "gone", gone, "GET /api/v1/nodes/node2", "GET /api/v1/nodes/node3")

	must(t, g.set.Update(reservation("stays", "node2", "uid-2")))
	answer := a.Answer
	a.Answer = func(call string, r *http.Request) (int, any) {
		if strings.HasSuffix(call, "/stays") {
			return http.StatusForbidden, nil
		}
		return answer(call, r)
	}
	if err := g.deleteAll(t.Context()); err == nil || !strings.Contains(err.Error(), "deleting db/stays") {
		t.Errorf("a deletion that is forbidden: %v", err)
	}
	if !slices.Contains(a.Calls, gone) {
		t.Errorf("it kept others from being deleted: %v", a.Calls)
	}
	for _, r := range g.set.List() {
		must(t, g.set.Delete(r))
	}
	if must(t, g.deleteAll(t.Context())); len(g.missing) > 0 {
		t.Errorf("without reservations it remembers %v", g.missing)
	}
}

// A node is gone only if the API server says so.
func TestIsGone(t *testing.T) {
	clock := noon.Add(nodeGoneAfter)
	a := fakeapi.NewRecorder(t)
	g := goneNodesOf(setOf(t), a, &clock)
	g.missing = map[types.UID]time.Time{"uid-2": noon, "uid-1": noon}
	if gone, err := g.isGone(t.Context(), "node1", "uid-1"); gone || err != nil {
		t.Errorf("a node that exists is gone: %v, %v", gone, err)
	}
	if _, remembered := g.missing["uid-1"]; remembered {
		t.Error("a node that exists is remembered as missing")
	}
	for code, want := range map[int]bool{http.StatusNotFound: true, http.StatusForbidden: false, 500: false} {
		a.Answer = func(string, *http.Request) (int, any) { return code, nil }
		gone, err := g.isGone(t.Context(), "node2", "uid-2")
		if gone != want || (err == nil) != want {
			t.Errorf("%d: gone: %v, %v", code, gone, err)
		}
	}
	for uid, want := range map[types.UID]bool{"uid-2": false, "uid-9": true} {
		a.Answer = func(string, *http.Request) (int, any) {
			return 0, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
				ObjectMeta: metav1.ObjectMeta{Name: "node2", UID: uid}}
		}
		if gone, err := g.isGone(t.Context(), "node2", "uid-2"); gone != want || err != nil {
			t.Errorf("the API server has a node2 with the UID %s: gone: %v, %v", uid, gone, err)
		}
	}
}
