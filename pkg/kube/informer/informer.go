// Package informer watches objects of the API server and keeps a view of each: the few fields that
// a program needs. While the server cannot be reached the views stay as they were: a failed list
// changes nothing.
//
// It is used where memory counts (docs/decisions.md, "One informer of our own").
package informer

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/leasehold-cni/leasehold/pkg/notify"
)

// Name is the namespace and name of an object.
type Name = types.NamespacedName

// Informer keeps a view of each object of a list, kept up to date by a watch. Views must not be
// modified. It is safe for concurrent use.
type Informer[V any] struct {
	expected any // an object of the type that is watched
	view     func(object any) (*item[V], error)
	items    cache.ThreadSafeStore // *item[V] by key
	lists    atomic.Int64          // complete lists received
	changes  notify.Signal

	mu       sync.Mutex // held while an object is stored and the handlers are called
	handlers []Handler[V]

	watching sync.Mutex
	current  watch.Interface
}

// Indexes are functions that return the values by which ByIndex finds a view.
type Indexes[V any] map[string]func(V) []string

// Handler is called for each change that the watch delivers, one call at a time and in the order of
// the changes. Its functions may be nil. They may read the informer and must not call its other
// methods.
type Handler[V any] struct {
	Added func(V)
	// Updated is also called if an object was deleted and created again while the watch was
	// interrupted.
	Updated func(before, now V)
	Deleted func(last V)
}

// item is a view, the key of its object (cache.MetaNamespaceKeyFunc) and its resource version.
type item[V any] struct {
	key, version string
	view         V
}

// GetObjectMeta returns what the reflector needs to know of an object.
func (i *item[V]) GetObjectMeta() metav1.Object {
	n := nameOf(i.key)
	return &metav1.ObjectMeta{Namespace: n.Namespace, Name: n.Name, ResourceVersion: i.version}
}

// New returns an informer without views. O is a pointer to the type of the objects; view may use
// parts of an object, or return it.
func New[O metav1.Object, V any](view func(O) V, indexes Indexes[V]) *Informer[V] {
	indexers := cache.Indexers{}
	for name, index := range indexes {
		indexers[name] = func(object any) ([]string, error) { return index(object.(*item[V]).view), nil }
	}
	return &Informer[V]{
		expected: reflect.New(reflect.TypeFor[O]().Elem()).Interface(),
		items:    cache.NewThreadSafeStore(indexers, cache.Indices{}),
		view: func(object any) (*item[V], error) {
			if i, ok := object.(*item[V]); ok {
				return i, nil // the reflector has called Transformer
			}
			o, ok := object.(O)
			if !ok {
				return nil, fmt.Errorf("unexpected type %T, want %T", object, o)
			}
			key, err := cache.MetaNamespaceKeyFunc(o)
			if err != nil {
				return nil, err
			}
			return &item[V]{key, o.GetResourceVersion(), view(o)}, nil
		},
	}
}

// nameOf splits a key. It has no namespace if the object has none.
func nameOf(key string) Name {
	namespace, name, _ := cache.SplitMetaNamespaceKey(key) // our own keys are valid
	return Name{Namespace: namespace, Name: name}
}

// Views returns all views by name, and reports whether a complete list was ever received. The
// caller may modify the map.
func (i *Informer[V]) Views() (views map[Name]V, synced bool) {
	synced = i.HasSynced()
	list := i.items.List()
	views = make(map[Name]V, len(list))
	for _, object := range list {
		it := object.(*item[V])
		views[nameOf(it.key)] = it.view
	}
	return views, synced
}

// List returns all views.
func (i *Informer[V]) List() []V { return viewsOf[V](i.items.List()) }

// ByIndex returns the views for which the index has the value.
func (i *Informer[V]) ByIndex(index, value string) []V {
	list, _ := i.items.ByIndex(index, value) // it fails only for an unknown index
	return viewsOf[V](list)
}

func viewsOf[V any](items []any) []V {
	views := make([]V, len(items))
	for n, object := range items {
		views[n] = object.(*item[V]).view
	}
	return views
}

// Get returns the view of an object by its key: namespace/name, or the name of an object that has
// no namespace.
func (i *Informer[V]) Get(key string) (view V, found bool) {
	object, found := i.items.Get(key)
	if !found {
		return view, false
	}
	return object.(*item[V]).view, true
}

// HasSynced reports whether a complete list was received, and the handlers were called for all of
// it.
func (i *Informer[V]) HasSynced() bool { return i.Lists() > 0 }

// Lists returns the number of complete lists received. It grows when the server can be reached
// again after a failure.
func (i *Informer[V]) Lists() int { return int(i.lists.Load()) }

// Changes returns a channel that receives a value after the views have changed.
func (i *Informer[V]) Changes() <-chan struct{} { return i.changes.Subscribe() }

// Handle calls h.Added for all existing views, and h for each change from then on.
func (i *Informer[V]) Handle(h Handler[V]) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.handlers = append(i.handlers, h)
	if h.Added != nil {
		for _, view := range i.List() {
			h.Added(view)
		}
	}
}

// Learn stores an object that the API server returned to a write, so that the writer does not act
// again before the watch delivers its own change. gone says that the object was deleted. Handlers
// are not called.
func (i *Informer[V]) Learn(object metav1.Object, gone bool) error {
	now, err := i.view(object)
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if gone {
		i.items.Delete(now.key)
		return nil
	}
	i.take(now, false)
	return nil
}

// take stores an object unless a newer version is known: the response to our own write and the
// watch event for it may come in either order, and the watch may still deliver versions from before
// the write. It returns what was known before, and reports whether the object was stored or
// deleted.
func (i *Informer[V]) take(now *item[V], gone bool) (before *item[V], taken bool) {
	if object, found := i.items.Get(now.key); found {
		before = object.(*item[V])
		order, err := resourceversion.CompareResourceVersion(now.version, before.version)
		if err == nil && (order < 0 || order == 0 && !gone) {
			return before, false
		}
	}
	if gone {
		i.items.Delete(now.key)
	} else {
		i.items.Update(now.key, now)
	}
	return before, true
}

// The next methods implement cache.TransformingStore, the store of a reflector.

// Add stores an object that the watch delivered.
func (i *Informer[V]) Add(object any) error { return i.change(object, false) }

// Update does the same as Add.
func (i *Informer[V]) Update(object any) error { return i.change(object, false) }

// Delete removes an object that was deleted.
func (i *Informer[V]) Delete(object any) error { return i.change(object, true) }

func (i *Informer[V]) change(object any, gone bool) error {
	now, err := i.view(object)
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	i.mu.Lock()
	before, taken := i.take(now, gone)
	if taken {
		for _, h := range i.handlers {
			h.call(before, now, gone)
		}
	}
	i.mu.Unlock()
	i.changes.Send()
	return nil
}

// call calls the function for a change. before is nil for an object that was not known.
func (h Handler[V]) call(before, now *item[V], gone bool) {
	switch {
	case gone:
		if before != nil && h.Deleted != nil {
			h.Deleted(now.view)
		}
	case before == nil:
		if h.Added != nil {
			h.Added(now.view)
		}
	case h.Updated != nil:
		h.Updated(before.view, now.view)
	}
}

// Replace stores a complete list.
func (i *Informer[V]) Replace(objects []any, _ string) error {
	list := make(map[string]any, len(objects))
	for _, object := range objects {
		it, err := i.view(object)
		if err != nil {
			return fmt.Errorf("list: %w", err)
		}
		list[it.key] = it
	}
	i.mu.Lock()
	former := map[string]*item[V]{}
	for _, object := range i.items.List() {
		it := object.(*item[V])
		former[it.key] = it
	}
	i.items.Replace(list, "")
	for _, h := range i.handlers {
		for key, object := range list {
			now, before := object.(*item[V]), former[key]
			if before == nil || before.version != now.version {
				h.call(before, now, false)
			}
		}
		for key, before := range former {
			if list[key] == nil {
				h.call(before, before, true)
			}
		}
	}
	i.lists.Add(1)
	i.mu.Unlock()
	i.changes.Send()
	return nil
}

// Resync does nothing.
func (i *Informer[V]) Resync() error { return nil }

// Transformer makes the reflector keep views while it receives a list.
func (i *Informer[V]) Transformer() cache.TransformFunc {
	return func(object any) (any, error) { return i.view(object) }
}

var _ cache.TransformingStore = (*Informer[string])(nil)

// retry is the backoff of requests to a server that cannot be reached. It is short, because changes
// must be known a few seconds after the server is back.
var retry = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.5, Steps: 6, Cap: 2 * time.Second}

// Run lists and watches until ctx is done. It returns ctx.Err(). what names the objects in log
// messages.
func (i *Informer[V]) Run(ctx context.Context, lw *cache.ListWatch, what string) error {
	restartable, backoff := *lw, retry
	restartable.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		w, err := lw.WatchFuncWithContext(ctx, o)
		if err == nil {
			i.watching.Lock()
			defer i.watching.Unlock()
			i.current = w
		}
		return w, err
	}
	cache.NewReflectorWithOptions(&restartable, i.expected, i, cache.ReflectorOptions{Name: what, Backoff: &backoff}).
		RunWithContext(ctx)
	return ctx.Err()
}

// Restart ends the watch, and another one goes on where it ended. It is for a watch that delivers
// nothing although its connection is open.
func (i *Informer[V]) Restart() {
	i.watching.Lock()
	defer i.watching.Unlock()
	if i.current != nil {
		i.current.Stop()
	}
}
