package kube

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestFirst(t *testing.T) {
	began := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		at   []time.Duration // when First is called
		want string
	}{
		{[]time.Duration{0, 0, life - 1}, "[true false false]"},
		{[]time.Duration{0, life, 2 * life, 3 * life}, "[true false false false]"},
		{[]time.Duration{0, 2 * life}, "[true true]"},
		{[]time.Duration{0, life - 1, 3 * life}, "[true false true]"},
	} {
		var s Reported
		var got []bool
		for _, at := range tt.at {
			got = append(got, s.First("a", began.Add(at)))
		}
		if fmt.Sprint(got) != tt.want {
			t.Errorf("at %v: %v, want %s", tt.at, got, tt.want)
		}
		if !s.First("b", began.Add(tt.at[len(tt.at)-1])) {
			t.Errorf("at %v: another key was in the set", tt.at)
		}
	}
}

// TestManyKeys adds more keys at one time than a set has.
func TestManyKeys(t *testing.T) {
	var s Reported
	for n := range 3 * maxKeys {
		if !s.First(fmt.Sprint(n), time.Time{}) {
			t.Fatalf("%d was in the set", n)
		}
	}
	if n := len(s.hashes.Keys()); n > maxKeys {
		t.Errorf("the set has %d keys, want at most %d", n, maxKeys)
	}
	if s.First(fmt.Sprint(2*maxKeys), time.Time{}) {
		t.Error("one of the last keys was not in the set")
	}
	if !s.First("0", time.Time{}) || s.First("0", time.Time{}) {
		t.Error("want the first key to have left the set, and then to be in it")
	}
}

// TestLongKeys adds keys that are as long as a user can make them by annotations.
func TestLongKeys(t *testing.T) {
	const count, size = 1000, 64 << 10
	var s Reported
	before := heap()
	for n := range count {
		s.First(fmt.Sprint(n, strings.Repeat("x", size)), time.Time{})
	}
	if after := heap(); after > before+count*size/16 {
		t.Errorf("%d keys of %d bytes take %d bytes", count, size, after-before)
	}
	runtime.KeepAlive(&s)
}

// heap returns the size of all live objects.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
