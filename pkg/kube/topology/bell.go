package topology

import (
	"context"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// A bell says what has to be looked at again to a controller's queue, once there is one. It is the controller's only
// source: what rings it may come and go.
type bell[T comparable] struct {
	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[T]
}

func (b *bell[T]) ring(items ...T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.queue == nil {
		return
	}
	for _, item := range items {
		b.queue.Add(item)
	}
}

// source is what a controller watches; all is what is there when it begins to.
func (b *bell[T]) source(all func() []T) source.TypedSource[T] {
	return source.TypedFunc[T](func(_ context.Context, queue workqueue.TypedRateLimitingInterface[T]) error {
		b.mu.Lock()
		b.queue = queue
		b.mu.Unlock()
		b.ring(all()...)
		return nil
	})
}
