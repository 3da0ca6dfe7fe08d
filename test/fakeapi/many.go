package fakeapi

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

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
		s := &feed{kind: r.Kind, changes: make([]feedItem, 1)}
		raw := s.encode(t, o, manyName)
		for n := range many {
			name := fmt.Appendf(nil, "o-%05d", n)
			s.items = append(s.items, feedItem{raw: bytes.ReplaceAll(raw, []byte(manyName), name)})
		}
		before, most, pages := heap(), 0, 0
		s.listed = func(isLast bool) {
			if pages++; pages%20 == 0 || isLast {
				most = max(most, heap()-before)
			}
		}
		i, stop := r.run(t, s, false)
		background.Until(t, "a list", i.HasSynced)
		size := heap() - before
		stop()
		t.Logf("%d KiB are kept, at most %d while %d pages are listed", size>>10, most>>10, pages)
		if views := len(i.List()); max(size, most) > many*manyKept || pages < 10 || views != many {
			t.Errorf("%d views; want %d with %d bytes each", views, many, manyKept)
		}
	})
}
