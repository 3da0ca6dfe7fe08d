package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

type object = metav1.PartialObjectMetadata

func newInformer() *Informer[string] {
	return NewInformer(func(o *object) string { return o.Labels["is"] },
		Indexes[string]{"first": func(is string) []string { return []string{is[:1]} }})
}

func some(name, version, is string) *object {
	return &object{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, ResourceVersion: version,
		Labels: map[string]string{"is": is}}}
}

func text(i *Informer[string]) string {
	views, synced := i.Views()
	var out []string
	for name, view := range views {
		if got, found := i.Get(name.String()); !found || got != view {
			out = append(out, "Get returns another "+name.Name)
		}
		out = append(out, name.Name+"="+view)
	}
	slices.Sort(out)
	return fmt.Sprint(synced, out)
}

// recorded is a handler that writes down its calls.
func recorded(to *[]string) Handler[string] {
	return Handler[string]{
		Added:   func(is string) { *to = append(*to, "+"+is) },
		Updated: func(before, is string) { *to = append(*to, before+">"+is) },
		Deleted: func(is string) { *to = append(*to, "-"+is) },
	}
}

func TestInformerFollowsListAndWatch(t *testing.T) {
	i := newInformer()
	changes := daemon.Any(&i.Changes)
	var calls []string
	i.Handle(recorded(&calls))
	for _, c := range []struct {
		name    string
		do      func() error
		want    string
		signals bool
		calls   string // of the handler, sorted
	}{
		{"no list yet", func() error { return nil }, "false []", false, ""},
		{"a list", func() error { return i.Replace([]any{some("a", "1", "old"), some("b", "2", "old")}, "2") },
			"true [a=old b=old]", true, "+old +old"},
		{"a change", func() error { return i.Update(some("a", "3", "new")) }, "true [a=new b=old]", true, "old>new"},
		{"a created object", func() error { return i.Add(some("c", "6", "new")) }, "true [a=new b=old c=new]", true,
			"+new"},
		{"a deleted object", func() error { return i.Delete(some("a", "7", "last")) }, "true [b=old c=new]", true,
			"-last"},
		{"an object that was not known is deleted", func() error { return i.Delete(some("a", "7", "last")) },
			"true [b=old c=new]", true, ""},
		{"deleted in the known version", func() error { return i.Delete(some("c", "6", "new")) }, "true [b=old]",
			true, "-new"},
		{"a failed list", func() error { return nil }, "true [b=old]", false, ""},
		{"a list with older versions", func() error { return i.Replace([]any{some("b", "1", "restored")}, "3") },
			"true [b=restored]", true, "old>restored"},
		{"the same list, and one more", func() error {
			return i.Replace([]any{some("b", "1", "restored"), some("d", "3", "new")}, "4")
		}, "true [b=restored d=new]", true, "+new"},
		{"an empty list", func() error { return i.Replace(nil, "9") }, "true []", true, "-new -restored"},
	} {
		calls = nil
		must.Succeed(t, c.do(), c.name)
		check.Equal(t, text(i), c.want, c.name)
		slices.Sort(calls)
		check.Equal(t, strings.Join(calls, " "), c.calls, c.name, "the handler was called with")
		select {
		case <-changes:
			if !c.signals {
				t.Errorf("%s: signalled a change", c.name)
			}
		default:
			if c.signals {
				t.Errorf("%s: did not signal a change", c.name)
			}
		}
	}
	if err := i.Add(&metav1.Status{}); err == nil {
		t.Error("an object of another type was accepted")
	}
}

func TestIndex(t *testing.T) {
	i := newInformer()
	for _, o := range []*object{some("a", "1", "xa"), some("b", "2", "xb"), some("c", "3", "yc"),
		some("b", "4", "yb")} {
		must.Succeed(t, i.Add(o))
	}
	for value, want := range map[string]string{"x": "[xa]", "y": "[yb yc]", "z": "[]"} {
		got := i.ByIndex("first", value)
		slices.Sort(got)
		check.Equal(t, fmt.Sprint(got), want, value)
	}
	check.Equal(t, len(i.List()), 3, i.List())
}

// While a list replaces another one, a reader finds what one of them has. Here the objects with x
// and y have other names or values than before.
func TestReadersSeeNoPartOfAList(t *testing.T) {
	lists := [][]any{
		{some("a", "1", "x"), some("b", "2", "y"), some("c", "3", "z")},
		{some("b", "4", "x"), some("c", "5", "y"), some("d", "6", "z")},
	}
	i := newInformer()
	var calls []string
	look := func(is string) {
		calls = append(calls, is)
		for _, value := range []string{"x", "y", "z"} {
			check.Equal(t, len(i.ByIndex("first", value)), 1, "at the change of", is, "what a reader finds of", value)
		}
	}
	i.Handle(Each(look))
	for range 5 {
		for _, list := range lists {
			must.Succeed(t, i.Replace(list, ""))
		}
	}
	if len(calls) < 3*len(lists) {
		t.Errorf("the handler was called for %v", calls)
	}
}

func TestHandlerThatComesLate(t *testing.T) {
	i := newInformer()
	must.Succeed(t, i.Add(some("a", "1", "old")))
	var calls []string
	i.Handle(recorded(&calls))
	i.Handle(Handler[string]{}) // its functions may be nil
	must.Succeed(t, i.Update(some("a", "2", "new")))
	check.Slices(t, calls, []string{"+old", "old>new"}, "called with")
}

// If the watch was interrupted, an object that was deleted and created again is one change.
func TestObjectThatWasCreatedAgain(t *testing.T) {
	i := newInformer()
	var calls []string
	i.Handle(recorded(&calls))
	for n, change := range []func(any) error{i.Add, i.Update, func(o any) error { return i.Replace([]any{o}, "") }} {
		o := some("a", fmt.Sprint(n), fmt.Sprint(n))
		o.UID = types.UID(fmt.Sprint("uid-", n))
		must.Succeed(t, change(o))
	}
	check.Slices(t, calls, []string{"+0", "-0", "+1", "-1", "+2"}, "called with")
}

// server is what an informer lists and watches.
type server struct {
	list    *metav1.List
	watches chan *watch.FakeWatcher
}

func (s *server) listWatch() *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) { return s.list, nil },
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents != nil {
				return nil, apierrors.NewBadRequest("an API server that is older")
			}
			w := watch.NewFake()
			s.watches <- w
			return w, nil
		},
	}
}

func newServer(t *testing.T, objects ...runtime.Object) *server {
	s := &server{&metav1.List{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, make(chan *watch.FakeWatcher)}
	must.Succeed(t, meta.SetList(s.list, objects))
	return s
}

// HasSynced must not be true before the handlers have returned for the complete list.
func TestHasSyncedWaitsForTheHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		i, proceed, s := newInformer(), make(chan struct{}), newServer(t, some("a", "1", "old"))
		i.Handle(Handler[string]{Added: func(string) { <-proceed }})
		done := make(chan error)
		go func() { done <- i.Run(ctx, s.listWatch(), "objects") }()
		synctest.Wait()
		if _, found := i.Get("db/a"); !found || i.HasSynced() {
			t.Errorf("before the handler has returned: known %t, synced %t", found, i.HasSynced())
		}
		close(proceed)
		<-s.watches
		if !i.HasSynced() {
			t.Error("not synced")
		}
		stop()
		if err := <-done; err == nil {
			t.Error("Run returned no error")
		}
	})
}
