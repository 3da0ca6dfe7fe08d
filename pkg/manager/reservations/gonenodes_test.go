package reservations

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/test/fakeapi"
)

// A node is gone only if the API server says so.
func TestGoneNodes(t *testing.T) {
	a := fakeapi.NewRecorder(t)
	reservation := func(name, node, uid string) *Reservation {
		return &Reservation{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, UID: types.UID("u-" + name),
			ResourceVersion: "1"}, Pod: name, Node: node, NodeUID: uid}
	}
	g := &goneNodes{set: setOf(t, reservation("here", "node1", "uid-1"), reservation("gone", "node2", "uid-2"),
		reservation("stays", "node2", "uid-2"), reservation("kept", "node3", "uid-3"),
		reservation("replaced", "node3", "uid-0"), reservation("unknown", "node4", "uid-4")),
		nodes: oneNode(t), client: a.Client, live: a.Client, log: logr.Discard()}
	a.Answer = func(call string, _ *http.Request) (int, any) {
		switch {
		case strings.HasSuffix(call, "/nodes/node3"): // the watch is late: it exists
			return 0, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
				ObjectMeta: metav1.ObjectMeta{Name: "node3", UID: "uid-3"}}
		case strings.HasSuffix(call, "/nodes/node4"):
			return http.StatusInternalServerError, nil
		case strings.Contains(call, "/nodes/"):
			return http.StatusNotFound, nil
		case strings.HasSuffix(call, "/stays"):
			return http.StatusForbidden, nil
		}
		return 0, nil
	}
	err := g.deleteAll(t.Context())
	for _, want := range []string{"deleting db/stays", "node4"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("unexpected error: %v, want one about %s", err, want)
		}
	}
	const deletion = "DELETE /apis/ipam.leasehold.dev/v1alpha1/namespaces/db/ipreservations/"
	var deleted []string
	for _, call := range a.Calls {
		if path, ok := strings.CutPrefix(call, deletion); ok {
			name, body, _ := strings.Cut(path, " ")
			if deleted = append(deleted, name); !strings.Contains(body, `"preconditions":{"uid":"u-`+name+`"}`) {
				t.Errorf("deleted whatever its UID is: %s", call)
			}
		}
	}
	if slices.Sort(deleted); !slices.Equal(deleted, []string{"gone", "replaced", "stays"}) {
		t.Errorf("deleted %q", deleted)
	}
}
