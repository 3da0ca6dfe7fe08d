package persistentpodstate

import (
	"context"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// An enqueuer adds items to the workqueue of a controller. It is the only source of the controller,
// because the informers whose handlers call enqueue may start and stop at any time.
type enqueuer[T comparable] struct {
	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[T]
}

// enqueue adds items to the workqueue. Before the controller has started, enqueue has no effect:
// the controller starts with all items.
func (e *enqueuer[T]) enqueue(items ...T) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.queue == nil {
		return
	}
	for _, item := range items {
		e.queue.Add(item)
	}
}

// source returns the source that the controller watches. When the controller starts, all is called,
// and the items that it returns are enqueued.
func (e *enqueuer[T]) source(all func() []T) source.TypedSource[T] {
	return source.TypedFunc[T](func(_ context.Context, queue workqueue.TypedRateLimitingInterface[T]) error {
		e.mu.Lock()
		e.queue = queue
		e.mu.Unlock()
		e.enqueue(all()...)
		return nil
	})
}
