package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
)

// Name is the namespace and name of an object.
type Name = types.NamespacedName

// Informer caches a view of each object of a list, and updates the views from a watch. A view is a
// value of the type V with the few fields of the object that a program needs. Views must not be
// modified. While the API server cannot be reached, the views stay as they were, and a failed list
// does not change them. An object that cannot be decoded, or has no name, is left out, with a
// warning, and counts in the metric LeftOut. An Informer is safe for concurrent use.
//
// It replaces client-go's informers in programs that must use little memory (docs/decisions.md,
// "One informer of our own").
type Informer[V any] struct {
	newObject func() runtime.Object // returns an empty object of the watched type
	view      func(object any) (*item[V], error)
	items     cache.ThreadSafeStore // *item[V] by key
	synced    atomic.Bool           // a complete list was received
	leftOut   leftOut

	// Changes is sent after the views have changed.
	Changes daemon.Signal

	mu       sync.Mutex // held while an object is stored and the handlers are called
	handlers []Handler[V]
}

// Indexes contains, by the name of an index, the function that returns the values by which ByIndex
// finds a view.
type Indexes[V any] map[string]func(V) []string

// Handler contains functions that are called for each change of an object. There is one call at a
// time, in the order of the changes. A function may be nil. The functions may read the informer,
// but must not call Handle, or any other method that changes it: the informer holds its lock
// during the call.
type Handler[V any] struct {
	Added   func(V)
	Updated func(before, now V)
	// Deleted is called if an object was deleted. It is also called, and then Added, if another
	// object has the name: the former one was deleted while the watch was interrupted.
	Deleted func(last V)
}

// Each returns a Handler that calls f with each new state of an object, and with the last one when
// it is deleted.
func Each[V any](f func(V)) Handler[V] {
	return Handler[V]{Added: f, Updated: func(_, now V) { f(now) }, Deleted: f}
}

// item contains the view of an object, the object's key (cache.ObjectName), its resource version
// and its UID. Of an object that is left out, it has the reason instead of the view.
type item[V any] struct {
	key, version string
	uid          types.UID
	view         V
	leftOut      error
}

// GetObjectMeta implements metav1.ObjectMetaAccessor, because the reflector reads the name and the
// resource version of items.
func (i *item[V]) GetObjectMeta() metav1.Object {
	n := nameOf(i.key)
	return &metav1.ObjectMeta{Namespace: n.Namespace, Name: n.Name, ResourceVersion: i.version}
}

// DeepCopyObject implements runtime.Object, because a list has objects.
func (i *item[V]) DeepCopyObject() runtime.Object { return i }

// GetObjectKind implements runtime.Object.
func (i *item[V]) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// NewInformer returns an informer without views. O is the pointer type of the objects. view returns
// the view of an object; the view may be the object itself or share memory with it.
func NewInformer[O metav1.Object, V any](view func(O) V, indexes Indexes[V]) *Informer[V] {
	indexers := cache.Indexers{}
	for name, index := range indexes {
		indexers[name] = func(object any) ([]string, error) { return index(object.(*item[V]).view), nil }
	}
	return &Informer[V]{
		newObject: func() runtime.Object {
			return reflect.New(reflect.TypeFor[O]().Elem()).Interface().(runtime.Object)
		},
		items:   cache.NewThreadSafeStore(indexers, cache.Indices{}),
		leftOut: leftOut{keys: map[string]bool{}},
		view: func(object any) (*item[V], error) {
			switch o := object.(type) {
			case *item[V]:
				return o, nil // the reflector has already called the function of Transformer
			case *Undecodable:
				key := cache.MetaObjectToName(o).String()
				return &item[V]{key: key, version: o.ResourceVersion, leftOut: o.Err}, nil
			case O:
				key := cache.MetaObjectToName(o).String()
				it := &item[V]{key: key, version: o.GetResourceVersion(), uid: o.GetUID()}
				if it.leftOut = errNoName; o.GetName() != "" {
					it.view, it.leftOut = view(o), nil
				}
				return it, nil
			}
			return nil, fmt.Errorf("unexpected type %T, want %s", object, reflect.TypeFor[O]())
		},
	}
}

var errNoName = errors.New("it has no name")

// nameOf splits a key into namespace and name. The namespace of a cluster-scoped object is "".
func nameOf(key string) Name {
	namespace, name, _ := cache.SplitMetaNamespaceKey(key) // those of cache.ObjectName are valid
	return Name{Namespace: namespace, Name: name}
}

// Views returns all views by name. synced reports whether the informer has ever received a complete
// list. The caller may modify the map.
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

// ByIndex returns the views for which the function of the index returns the value. An unknown index
// has no views.
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

// Get returns the view of the object with the given key, which is namespace/name, or only the name
// if the object is cluster-scoped. found is false if there is no such object.
func (i *Informer[V]) Get(key string) (view V, found bool) {
	object, found := i.items.Get(key)
	if !found {
		return view, false
	}
	return object.(*item[V]).view, true
}

// HasSynced reports whether a complete list was received, and the handlers have returned for all
// objects in it.
func (i *Informer[V]) HasSynced() bool { return i.synced.Load() }

// IsComplete reports whether the informer leaves out no object. Otherwise, that it has no view of
// an object does not prove that there is no such object.
func (i *Informer[V]) IsComplete() bool { return i.leftOut.count.Load() == 0 }

// Handle registers a handler. It calls h.Added for all existing views before it returns. Later
// changes are passed to h by the goroutine of Run.
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

// The next methods implement cache.TransformingStore, the store of a reflector.

// Add stores a new object that the watch delivered.
func (i *Informer[V]) Add(object any) error { return i.change(object, false) }

// Update stores a changed object that the watch delivered.
func (i *Informer[V]) Update(object any) error { return i.change(object, false) }

// Delete removes an object whose deletion the watch delivered.
func (i *Informer[V]) Delete(object any) error { return i.change(object, true) }

// change processes a watch event, and signals Changes.
func (i *Informer[V]) change(object any, gone bool) error {
	now, err := i.view(object)
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	i.mu.Lock()
	i.store(now, gone)
	i.mu.Unlock()
	i.Changes.Send()
	return nil
}

// store stores or deletes an item, and calls the handlers. An object that is left out counts as
// deleted. The caller holds i.mu.
func (i *Informer[V]) store(now *item[V], gone bool) {
	object, _ := i.items.Get(now.key)
	before, _ := object.(*item[V]) // nil if there is none
	if i.leftOut.set(now.key, now.leftOut, gone); now.leftOut != nil {
		now, gone = cmp.Or(before, now), true
	}
	if gone {
		i.items.Delete(now.key)
	} else {
		i.items.Update(now.key, now)
	}
	i.notify(before, now, gone)
}

// notify calls the handlers for a change. The caller holds i.mu.
func (i *Informer[V]) notify(before, now *item[V], gone bool) {
	for _, h := range i.handlers {
		h.call(before, now, gone)
	}
}

// call calls the function of h for a change. before is nil for an object that was not known.
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
	case before.version == now.version: // a list has it again
	case before.uid != now.uid:
		h.call(before, before, true)
		h.call(nil, now, false)
	case h.Updated != nil:
		h.Updated(before.view, now.view)
	}
}

// Replace stores a complete list, all of it at once, because what a reader finds in only a part of
// it may not exist: an object that has another name now would be in neither. Then Replace calls the
// handlers for each change, and signals Changes. The informer ignores the resource version of the
// list.
func (i *Informer[V]) Replace(objects []any, _ string) error {
	list, out := make(map[string]any, len(objects)), map[string]error{}
	for _, object := range objects {
		it, err := i.view(object)
		if err != nil {
			return fmt.Errorf("list: %w", err)
		}
		if it.leftOut != nil {
			out[it.key] = it.leftOut
		} else {
			list[it.key] = it
		}
	}
	i.mu.Lock()
	i.leftOut.replace(out)
	former := map[string]*item[V]{}
	for _, object := range i.items.List() {
		it := object.(*item[V])
		former[it.key] = it
	}
	i.items.Replace(list, "")
	for key, before := range former {
		if list[key] == nil {
			i.notify(before, before, true)
		}
	}
	for key, now := range list {
		i.notify(former[key], now.(*item[V]), false)
	}
	i.synced.Store(true)
	i.mu.Unlock()
	i.Changes.Send()
	return nil
}

// Resync does nothing. It is part of the interface.
func (i *Informer[V]) Resync() error { return nil }

// Transformer returns a function that the reflector calls for each object as soon as it is decoded.
// The function returns the item of the object, so that the complete objects of a list are not in
// memory at the same time.
func (i *Informer[V]) Transformer() cache.TransformFunc {
	return func(object any) (any, error) { return i.view(object) }
}

var _ cache.TransformingStore = (*Informer[string])(nil)

// retry is the backoff of requests to an API server that cannot be reached. It is short, because
// changes must be known a few seconds after the server is available again.
var retry = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.5, Steps: 6, Cap: 2 * time.Second}

// ListWatch returns the list and watch calls for the objects of a resource with a label and a
// field, in a namespace. Each of these is any if it is "".
func (i *Informer[V]) ListWatch(client rest.Interface, resource, namespace, label, field string) *cache.ListWatch {
	request := func(o *metav1.ListOptions) *rest.Request {
		o.LabelSelector, o.FieldSelector = label, field
		return client.Get().Namespace(namespace).Resource(resource).VersionedParams(o, metav1.ParameterCodec)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			body, err := request(&o).Stream(ctx)
			if err != nil {
				return nil, err
			}
			defer body.Close()
			all := &metav1.List{}
			all.ListMeta, err = eachItem(body, i.newObject, func(object runtime.Object) error {
				it, err := i.view(object)
				all.Items = append(all.Items, runtime.RawExtension{Object: it})
				return err
			})
			return all, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			return request(&o).Watch(ctx)
		},
	}
}

// NewObject returns an empty object of the type that is watched.
func (i *Informer[V]) NewObject() runtime.Object { return i.newObject() }

// reflector returns the reflector that stores what lw lists and watches. what names the objects in
// log messages and in the metric LeftOut.
func (i *Informer[V]) reflector(ctx context.Context, lw cache.ListerWatcher, what string, o cache.ReflectorOptions,
) *cache.Reflector {
	i.leftOut.start(what, klog.FromContext(ctx))
	o.Name, o.TypeDescription = what, what
	return cache.NewReflectorWithOptions(lw, nil, i, o) // of any type: an *Undecodable too
}

// ListOnce lists objects with lw, from the API server's watch cache, and does not watch them. what
// is that of Run.
func (i *Informer[V]) ListOnce(ctx context.Context, lw *cache.ListWatch, what string) error {
	i.leftOut.start(what, klog.FromContext(ctx))
	list, err := lw.ListWithContext(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return err
	}
	var objects []any
	_ = meta.EachListItem(list, func(o runtime.Object) error { objects = append(objects, o); return nil })
	return i.Replace(objects, "")
}

// Run lists and watches objects with lw until ctx is done. what names the objects in log messages
// and in the metric LeftOut. Run returns ctx.Err().
func (i *Informer[V]) Run(ctx context.Context, lw *cache.ListWatch, what string) error {
	paged, backoff := *lw, retry
	// Reflectors list objects if the API server does not send them with the watch, one by one, as
	// it does from Kubernetes 1.34 on. Lists from its watch cache have no pages, so that this reads
	// from etcd.
	paged.ListWithContextFunc = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		o.ResourceVersion, o.ResourceVersionMatch, o.Limit = "", "", pageSize
		list, _, err := (&pager.ListPager{PageFn: lw.ListWithContext}).List(ctx, o)
		return list, err
	}
	i.reflector(ctx, &paged, what, cache.ReflectorOptions{Backoff: &backoff}).RunWithContext(ctx)
	return ctx.Err()
}

// pageSize is how many objects the API server has to read for a request. An object has at most 1.5
// MiB.
const pageSize = 50

// minWatch is the shortest time after which the API server ends a watch. The longest is twice that.
// With client-go's 5 minutes, 5,000 programs with three watches begin 33 of them in each second.
const minWatch = 30 * time.Minute

// withoutWatchList is a ListWatch with which a reflector lists objects before it watches them. A
// watch that sends the list itself would be one request, but for it the API server copies and sorts
// all objects of the cluster, where it has an index for a list.
type withoutWatchList struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported reports whether a reflector must list objects first, always true.
func (withoutWatchList) IsWatchListSemanticsUnSupported() bool { return true }

// NodeInformer is an Informer of a program that runs on every node. While the API server refuses a
// request, it repeats the request after a random part of Period, and it lists again after such a
// part if a watch has failed: if many programs lose the API server at the same moment, all of them
// watch again within a Period of its return, one after the other (docs/decisions.md, "Cost that
// does not grow with the nodes"). Until it has received a list, it waits for a second at first, and
// for at most a quarter of Period.
type NodeInformer[V any] struct {
	*Informer[V]
	ListWatch *cache.ListWatch
	What      string // names the objects in log messages
	Period    time.Duration
}

// Run lists and watches objects until ctx is done. It returns ctx.Err().
func (i *NodeInformer[V]) Run(ctx context.Context) error {
	refused := wait.Backoff{Duration: i.Period / 20, Jitter: 19} // a twentieth of the period to all of it
	reflector := i.reflector(ctx, withoutWatchList{i.ListWatch}, i.What,
		cache.ReflectorOptions{MinWatchTimeout: minWatch, Backoff: &refused})
	starting := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 1, Steps: 10, Cap: i.Period / 4}
	for {
		if err := reflector.ListAndWatchWithContext(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Info("watch failed", "reflector", i.What, "error", err)
		}
		pause := rand.N(i.Period)
		if !i.HasSynced() {
			pause = starting.Step()
		}
		if !daemon.Wait(ctx, nil, pause) {
			return ctx.Err()
		}
	}
}
