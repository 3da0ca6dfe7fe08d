// Package informer keeps trimmed copies of lists from the API server. While the server cannot be
// reached they stay as they were: a failed list changes nothing.
package informer

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"

	"github.com/leasehold-cni/leasehold/pkg/notify"
)

// Name is the namespace and name of an object.
type Name struct{ Namespace, Name string }

func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Object is a pointer to an API object.
type Object interface {
	runtime.Object
	metav1.Object
}

// Table is a copy of a list of objects, kept up to date by a watch, with each object trimmed to a
// row. It is safe for concurrent use.
type Table[O Object, R any] struct {
	// Trim converts an object to a row, which may refer to parts of the object.
	Trim func(O) R
	// Strip removes from an object what no row needs. It is called before the object is stored, by
	// the reflector too.
	Strip func(O)

	mu      sync.Mutex
	rows    map[Name]row[R]
	lists   int // complete lists received
	changes notify.Signal
}

type row[R any] struct {
	value   R
	version string
}

// Rows returns the rows, and reports whether a complete list was ever received. The caller may
// modify the map, but not the rows.
func (t *Table[O, R]) Rows() (rows map[Name]R, synced bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rows = make(map[Name]R, len(t.rows))
	for name, r := range t.rows {
		rows[name] = r.value
	}
	return rows, t.lists > 0
}

// Lists returns the number of complete lists received. It grows when the server can be reached
// again after a failure.
func (t *Table[O, R]) Lists() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lists
}

// Get returns the row of an object.
func (t *Table[O, R]) Get(n Name) (r R, found bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, found := t.rows[n]
	return at.value, found
}

// Changes returns a channel that receives a value after the table has changed.
func (t *Table[O, R]) Changes() <-chan struct{} { return t.changes.Subscribe() }

// Learn stores an object that the API server returned to a write, so that the writer does not act
// again before the watch delivers its own change. gone says that the object was deleted.
func (t *Table[O, R]) Learn(o O, gone bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if gone {
		delete(t.rows, nameOf(o))
		return
	}
	t.take(o, false)
}

// take stores an object unless a newer version is known: the response to our own write and the
// watch event for it may come in either order, and the watch may still deliver versions from before
// the write.
func (t *Table[O, R]) take(o O, gone bool) {
	n := nameOf(o)
	old, known := t.rows[n]
	if known {
		order, err := resourceversion.CompareResourceVersion(o.GetResourceVersion(), old.version)
		if err == nil && (order < 0 || order == 0 && !gone) {
			return
		}
	}
	if gone {
		delete(t.rows, n)
		return
	}
	t.put(n, o)
}

func nameOf(o metav1.Object) Name { return Name{o.GetNamespace(), o.GetName()} }

func (t *Table[O, R]) put(n Name, o O) {
	if t.rows == nil {
		t.rows = map[Name]row[R]{}
	}
	t.Strip(o)
	t.rows[n] = row[R]{t.Trim(o), o.GetResourceVersion()}
}

// The remaining methods implement cache.TransformingStore, the store of a reflector.

// Add stores an object that the watch delivered.
func (t *Table[O, R]) Add(obj any) error { return t.change(obj, false) }

// Update does the same as Add.
func (t *Table[O, R]) Update(obj any) error { return t.change(obj, false) }

// Delete removes an object that was deleted.
func (t *Table[O, R]) Delete(obj any) error { return t.change(obj, true) }

func (t *Table[O, R]) change(obj any, gone bool) error {
	o, ok := obj.(O)
	if !ok {
		return fmt.Errorf("watch: unexpected type %T, want %T", obj, o)
	}
	t.mu.Lock()
	t.take(o, gone)
	t.mu.Unlock()
	t.changes.Send()
	return nil
}

// Replace stores a complete list.
func (t *Table[O, R]) Replace(objects []any, _ string) error {
	t.mu.Lock()
	t.rows = make(map[Name]row[R], len(objects))
	for _, obj := range objects {
		o, ok := obj.(O)
		if !ok {
			t.mu.Unlock()
			return fmt.Errorf("list: unexpected type %T, want %T", obj, o)
		}
		t.put(nameOf(o), o)
	}
	t.lists++
	t.mu.Unlock()
	t.changes.Send()
	return nil
}

// Resync does nothing.
func (t *Table[O, R]) Resync() error { return nil }

// Transformer strips the objects that the reflector itself keeps.
func (t *Table[O, R]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if o, ok := obj.(O); ok {
			t.Strip(o)
		}
		return obj, nil
	}
}

// retry is the backoff of requests to a server that cannot be reached. It is short, because changes
// must be known a few seconds after the server is back.
var retry = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.5, Steps: 6, Cap: 2 * time.Second}

// Watch keeps the table up to date until ctx is done. It returns ctx.Err().
func (t *Table[O, R]) Watch(ctx context.Context, lw cache.ListerWatcher, name string, log *slog.Logger) error {
	backoff := retry
	var expected O
	r := cache.NewReflectorWithOptions(lw, expected, t, cache.ReflectorOptions{Name: name, Backoff: &backoff})
	log.Debug("watch started", "objects", name)
	r.RunWithContext(ctx)
	return ctx.Err()
}

var _ cache.TransformingStore = (*Table[*metav1.PartialObjectMetadata, string])(nil)
