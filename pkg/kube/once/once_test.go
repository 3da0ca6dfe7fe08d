package once

import (
	"fmt"
	"testing"
	"time"
)

func TestFirst(t *testing.T) {
	began := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		life time.Duration
		at   []time.Duration // when First is called
		want string
	}{
		{0, []time.Duration{0, 0, 1000 * time.Hour}, "[true false false]"},
		{time.Minute, []time.Duration{0, time.Minute, 2 * time.Minute, 3*time.Minute + 1}, "[true false false true]"},
	} {
		s := &Set{Life: tt.life}
		var got []bool
		for _, at := range tt.at {
			got = append(got, s.First("a", began.Add(at)))
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("life %v: %v, want %s", tt.life, got, tt.want)
		}
		if !s.First("b", began) {
			t.Errorf("life %v: another key was in the set", tt.life)
		}
	}
}

func TestFullSetIsEmptied(t *testing.T) {
	var s Set
	for n := range maxKeys {
		if !s.First(fmt.Sprint(n), time.Time{}) {
			t.Fatalf("%d was in the set", n)
		}
	}
	for _, n := range []int{0, maxKeys - 1} {
		if s.First(fmt.Sprint(n), time.Time{}) {
			t.Errorf("%d was not in the set", n)
		}
	}
	if !s.First("one too many", time.Time{}) || !s.First("0", time.Time{}) || s.First("one too many", time.Time{}) {
		t.Error("want all forgotten when there is one key too many")
	}
}
