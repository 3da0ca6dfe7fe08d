// Package live keeps small copies of what the API server lists, for as long as it can be reached and after that as they
// were: a list that failed changes nothing.
package live

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

	"github.com/leasehold-cni/leasehold/pkg/signal"
)

// Name is an object's namespace and name.
type Name struct{ Namespace, Name string }

func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Object is a pointer to an API object.
type Object interface {
	runtime.Object
	metav1.Object
}

// Table is a live copy of a list of objects, each trimmed to a row. Any number of goroutines may read it.
type Table[O Object, R any] struct {
	// Trim makes a row of an object, and may keep parts of it.
	Trim func(O) R
	// Strip takes from an object what no row needs, before it is kept anywhere.
	Strip func(O)

	mu      sync.Mutex
	rows    map[Name]row[R]
	lists   int
	changes signal.Signal
}

type row[R any] struct {
	value   R
	version string
}

// Rows returns the rows, and whether they were ever listed as a whole. The map is the caller's, what is in it is not.
func (t *Table[O, R]) Rows() (rows map[Name]R, synced bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rows = make(map[Name]R, len(t.rows))
	for name, r := range t.rows {
		rows[name] = r.value
	}
	return rows, t.lists > 0
}

// Lists is how often a whole list came. A new one means that the server answers again.
func (t *Table[O, R]) Lists() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lists
}

// Get returns one row.
func (t *Table[O, R]) Get(n Name) (r R, found bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at, found := t.rows[n]
	return at.value, found
}

// Changes returns a channel that gets a word after the table has changed.
func (t *Table[O, R]) Changes() <-chan struct{} { return t.changes.Subscribe() }

// Learn takes an object that the API server has answered with: so that nobody acts again on what its own write has
// changed. With gone it takes that the object was deleted.
func (t *Table[O, R]) Learn(o O, gone bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if gone {
		delete(t.rows, nameOf(o))
		return
	}
	t.take(o, false)
}

// take takes what is news. What we have written ourselves is known before the watch has brought what was there before it,
// and the other way round.
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

// The rest is what a reflector asks of its store.

// Add takes an object that the watch brings.
func (t *Table[O, R]) Add(obj any) error { return t.change(obj, false) }

// Update does as Add.
func (t *Table[O, R]) Update(obj any) error { return t.change(obj, false) }

// Delete takes that an object is gone.
func (t *Table[O, R]) Delete(obj any) error { return t.change(obj, true) }

func (t *Table[O, R]) change(obj any, gone bool) error {
	o, ok := obj.(O)
	if !ok {
		return fmt.Errorf("a %T came in a watch of %T", obj, o)
	}
	t.mu.Lock()
	t.take(o, gone)
	t.mu.Unlock()
	t.changes.Send()
	return nil
}

// Replace takes a whole list.
func (t *Table[O, R]) Replace(objects []any, _ string) error {
	t.mu.Lock()
	t.rows = make(map[Name]row[R], len(objects))
	for _, obj := range objects {
		o, ok := obj.(O)
		if !ok {
			t.mu.Unlock()
			return fmt.Errorf("a %T came in a list of %T", obj, o)
		}
		t.put(nameOf(o), o)
	}
	t.lists++
	t.mu.Unlock()
	t.changes.Send()
	return nil
}

// Resync has no meaning here.
func (t *Table[O, R]) Resync() error { return nil }

// Transformer makes the reflector keep small what it keeps itself.
func (t *Table[O, R]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if o, ok := obj.(O); ok {
			t.Strip(o)
		}
		return obj, nil
	}
}

// retry is how often a server that is away is asked: the answer must be here a few seconds after it returns.
var retry = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.5, Steps: 6, Cap: 2 * time.Second}

// Watch keeps the table up to date until ctx is done.
func (t *Table[O, R]) Watch(ctx context.Context, lw cache.ListerWatcher, name string, log *slog.Logger) error {
	backoff := retry
	var expected O
	r := cache.NewReflectorWithOptions(lw, expected, t, cache.ReflectorOptions{Name: name, Backoff: &backoff})
	log.Debug("watching", "what", name)
	r.RunWithContext(ctx)
	return ctx.Err()
}

var _ cache.TransformingStore = (*Table[*metav1.PartialObjectMetadata, string])(nil)
