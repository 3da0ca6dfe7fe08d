package scenarios

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/leasehold-cni/leasehold/test/e2e/story"
)

func TestNamesAreUniqueAndFitForNamespaces(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range All() {
		if seen[s.Name] {
			t.Errorf("two scenarios are called %s", s.Name)
		}
		seen[s.Name] = true
		if len(s.Name) > 40 || s.About == "" || s.Run == nil {
			t.Errorf("%s: long name, no description or nothing to run", s.Name)
		}
	}
}

func TestChoose(t *testing.T) {
	tests := []struct {
		pattern string
		want    int
		ok      bool
	}{
		{"", len(All()), true},
		{"^recreate$", 1, true},
		{"^reboot", 2, true},
		{"nothing-like-it", 0, false},
		{"(", 0, false},
	}
	for _, tt := range tests {
		got, err := Choose(All(), tt.pattern)
		if len(got) != tt.want || (err == nil) != tt.ok {
			t.Errorf("RUN=%s: %d scenarios, %v; want %d, ok %v", tt.pattern, len(got), err, tt.want, tt.ok)
		}
	}
}

func TestSideBySide(t *testing.T) {
	named := func(name string) Scenario { return Scenario{Scenario: story.Scenario{Name: name}} }
	all := []Scenario{named("a1").on(1), named("b1").on(1), named("c2").on(2), named("whole"), named("d23").on(2, 3), named("e9").on(9)}
	var mu sync.Mutex
	users := map[string]string{} // of the nodes
	begun := map[string]chan struct{}{}
	for _, s := range all {
		begun[s.Name] = make(chan struct{})
	}
	results := sideBySide(t.Context(), all, []string{"node1", "node2", "node3"}, func(s Scenario) story.Result {
		mu.Lock()
		for _, n := range s.nodeNames([]string{"node1", "node2", "node3"}) {
			if other := users[n]; other != "" {
				t.Errorf("%s and %s have %s at once", s.Name, other, n)
			}
			users[n] = s.Name
		}
		mu.Unlock()
		close(begun[s.Name])
		if s.Name == "a1" { // would never end if they ran one after the other
			<-begun["c2"]
			<-begun["e9"]
		}
		mu.Lock()
		for n, who := range users {
			if who == s.Name {
				delete(users, n)
			}
		}
		mu.Unlock()
		return story.Result{Scenario: s.Scenario}
	})
	var names []string
	for _, r := range results {
		names = append(names, r.Scenario.Name)
	}
	slices.Sort(names)
	if want := []string{"a1", "b1", "c2", "d23", "e9", "whole"}; !slices.Equal(names, want) {
		t.Errorf("ran %v, want %v", names, want)
	}
}

func TestSideBySideBeginsNoMoreWhenTheContextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	named := func(name string) Scenario { return Scenario{Scenario: story.Scenario{Name: name}} }
	results := sideBySide(ctx, []Scenario{named("first"), named("second")}, []string{"node1"}, func(s Scenario) story.Result {
		cancel()
		return story.Result{Scenario: s.Scenario}
	})
	if len(results) != 1 || results[0].Scenario.Name != "first" {
		t.Errorf("ran %v, want the first alone", results)
	}
}
