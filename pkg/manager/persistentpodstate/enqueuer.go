package persistentpodstate

import (
	"context"
	"sync"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// An enqueuer adds items to the workqueue of a controller, once the controller has started. It is
// the controller's only source, because the informers that call it may start and stop at any time.
type enqueuer[T comparable] struct {
	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[T]
}

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

// source returns the source for the controller to watch. all returns the items to enqueue when it
// starts.
func (e *enqueuer[T]) source(all func() []T) source.TypedSource[T] {
	return source.TypedFunc[T](func(_ context.Context, queue workqueue.TypedRateLimitingInterface[T]) error {
		e.mu.Lock()
		e.queue = queue
		e.mu.Unlock()
		e.enqueue(all()...)
		return nil
	})
}
