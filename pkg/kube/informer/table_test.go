package informer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/notify"
)

type object = metav1.PartialObjectMetadata

func newTable() *Table[*object, string] {
	return &Table[*object, string]{
		Trim:  func(o *object) string { return o.Labels["is"] + o.Annotations["big"] },
		Strip: func(o *object) { o.Annotations = nil },
	}
}

func some(name, version, is string) *object {
	return &object{ObjectMeta: metav1.ObjectMeta{Namespace: "db", Name: name, ResourceVersion: version,
		Labels: map[string]string{"is": is}, Annotations: map[string]string{"big": strings.Repeat("x", 9)}}}
}

func text(t *Table[*object, string]) string {
	rows, synced := t.Rows()
	var out []string
	for n, r := range rows {
		out = append(out, n.Name+"="+r)
	}
	slices.Sort(out)
	return fmt.Sprint(synced, out)
}

func TestTableFollowsListAndWatch(t *testing.T) {
	table := newTable()
	changes := table.Changes()
	for _, c := range []struct {
		name    string
		do      func() error
		want    string
		signals bool
	}{
		{"no list yet", func() error { return nil }, "false []", false},
		{"a list", func() error { return table.Replace([]any{some("a", "1", "old"), some("b", "2", "old")}, "2") },
			"true [a=old b=old]", true},
		{"a change", func() error { return table.Update(some("a", "3", "new")) }, "true [a=new b=old]", true},
		{"a write of our own", func() error { table.Learn(some("b", "5", "written"), false); return nil },
			"true [a=new b=written]", false},
		{"the version before it", func() error { table.Learn(some("b", "4", "old"), false); return nil },
			"true [a=new b=written]", false},
		{"the watch event of the write", func() error { return table.Update(some("b", "5", "written")) },
			"true [a=new b=written]", true},
		{"a write of our own, before older watch events", func() error {
			table.Learn(some("b", "9", "again"),
				false)
			return nil
		}, "true [a=new b=again]", false},
		{"a watch event from before the write", func() error { return table.Update(some("b", "7", "other")) },
			"true [a=new b=again]", true},
		{"a delete event from before the write", func() error { return table.Delete(some("b", "8", "other")) },
			"true [a=new b=again]", true},
		{"a created object", func() error { return table.Add(some("c", "6", "new")) }, "true [a=new b=again c=new]", true},
		{"a deleted object", func() error { return table.Delete(some("a", "7", "")) }, "true [b=again c=new]", true},
		{"a deletion of our own", func() error { table.Learn(some("c", "8", ""), true); return nil },
			"true [b=again]", false},
		{"created again after our own deletion", func() error { table.Learn(some("c", "12", "again"), false); return nil },
			"true [b=again c=again]", false},
		{"the watch event of our own deletion", func() error { return table.Delete(some("c", "9", "")) },
			"true [b=again c=again]", true},
		{"deleted in the known version", func() error { return table.Delete(some("c", "12", "")) }, "true [b=again]", true},
		{"a failed list", func() error { return nil }, "true [b=again]", false},
		{"a list with older versions", func() error { return table.Replace([]any{some("b", "2", "restored")}, "3") },
			"true [b=restored]", true},
		{"an empty list", func() error { return table.Replace(nil, "9") }, "true []", true},
	} {
		if err := c.do(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := text(table); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
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
	if err := table.Add(&metav1.Status{}); err == nil {
		t.Error("an object of another type was accepted")
	}
}

func TestLoopMergesBursts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var a, b notify.Signal
		began, passes := time.Now(), []time.Duration{}
		done := make(chan error)
		wake := Any(ctx, a.Subscribe(), b.Subscribe())
		go func() {
			done <- Loop(ctx, time.Second, wake, func(context.Context) time.Duration {
				passes = append(passes, time.Since(began))
				if len(passes) == 2 {
					return time.Minute
				}
				return 0
			})
		}()
		time.Sleep(10 * time.Second)
		for range 5 { // a burst of 2.5 s
			a.Send()
			b.Send()
			time.Sleep(500 * time.Millisecond)
		}
		time.Sleep(2 * time.Minute)
		stop()
		if err := <-done; err == nil {
			t.Error("Loop returned no error")
		}
		want := []time.Duration{0, 10 * time.Second, 11 * time.Second, 12 * time.Second, 13 * time.Second}
		if !slices.Equal(passes, want) {
			t.Errorf("passes at %v, want %v", passes, want)
		}
	})
}

func TestLoopRequeues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute-time.Second)
		defer stop()
		began, passes := time.Now(), []time.Duration{}
		_ = Loop(ctx, time.Second, nil, func(context.Context) time.Duration {
			passes = append(passes, time.Since(began))
			return time.Minute
		})
		if want := []time.Duration{0, time.Minute, 2 * time.Minute}; !slices.Equal(passes, want) {
			t.Errorf("passes at %v, want %v", passes, want)
		}
	})
}
