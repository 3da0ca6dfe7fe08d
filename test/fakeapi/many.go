package fakeapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/leasehold-cni/leasehold/pkg/kube"
	"github.com/leasehold-cni/leasehold/test/background"
)

const (
	many     = 5000
	manyText = 4 << 10 // bytes of an annotation of each object
	manyKept = 2 << 10 // bytes of heap that may be kept of each
	manyName = "o-00000"
)

// testMany has the informer list many objects from a server that sends them in pages. It fails if
// more than manyKept of each of them is in use while it lists, or after that.
func (r Reader[V]) testMany(t *testing.T) {
	t.Run(fmt.Sprint(many, " of ", r.Kind.Kind), func(t *testing.T) {
		o := r.Good.DeepCopyObject().(kube.Object)
		o.SetAnnotations(map[string]string{"a": strings.Repeat("x", manyText)})
		p := &pager{kind: r.Kind, raw: (&feed{kind: r.Kind}).encode(t, o, manyName), before: heap()}
		server := httptest.NewServer(p)
		defer server.Close()
		ctx, stop := context.WithCancel(klog.NewContext(t.Context(), klog.Background()))
		defer stop()
		i := r.New()
		lw, ended := r.listWatch(t, i, server), make(chan error)
		go func() { ended <- i.Run(ctx, lw, t.Name()) }()
		background.Until(t, "a list", i.HasSynced)
		size := heap() - p.before
		stop()
		<-ended
		p.mu.Lock()
		defer p.mu.Unlock()
		t.Logf("%d KiB are kept, at most %d while %d pages are listed", size>>10, p.most>>10, p.pages)
		if views := len(i.List()); max(size, p.most) > many*manyKept || p.pages < 10 || views != many {
			t.Errorf("%d views; want %d with %d bytes each", views, many, manyKept)
		}
	})
}

// A pager is an API server with many equal objects, which it lists in pages.
type pager struct {
	kind   schema.GroupVersionKind
	raw    []byte // an object with the name manyName
	before int    // the heap before the list

	mu    sync.Mutex
	most  int // how much the heap has grown by at most
	pages int
}

func (p *pager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case query.Get("sendInitialEvents") == "true":
		fail(w, http.StatusBadRequest) // as API servers did before they could
		return
	case query.Get("watch") != "":
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return
	}
	first, _ := strconv.Atoi(query.Get("continue"))
	limit, _ := strconv.Atoi(query.Get("limit"))
	last, next := min(first+limit, many), ""
	if last < many {
		next = strconv.Itoa(last)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pages++; p.pages%20 == 0 || last == many {
		p.most = max(p.most, heap()-p.before)
	}
	var items []json.RawMessage
	for n := first; n < last; n++ {
		items = append(items, bytes.ReplaceAll(p.raw, []byte(manyName), fmt.Appendf(nil, "o-%05d", n)))
	}
	respond(w, map[string]any{"kind": p.kind.Kind + "List", "apiVersion": p.kind.GroupVersion().String(),
		"metadata": map[string]string{"resourceVersion": "1", "continue": next}, "items": items})
}
