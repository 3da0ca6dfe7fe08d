package kube

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A key is reported once in an hour, and among many the ones that were reported last.
func TestFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s Reported
		first := s.First("a")
		time.Sleep(life - 1)
		second := s.First("a")
		time.Sleep(life + 1)
		if !first || second || !s.First("a") {
			t.Error("want true, false before the end of its life, and true after it")
		}
		for n := range 3 * maxKeys {
			s.First(fmt.Sprint(n))
		}
		if n := len(s.hashes.Keys()); n > maxKeys || s.First(fmt.Sprint(3*maxKeys-1)) || !s.First("0") {
			t.Errorf("the set has %d keys, want at most %d, and the last ones", n, maxKeys)
		}
	})
}

// TestLongKeys adds keys that are as long as a user can make them by annotations.
func TestLongKeys(t *testing.T) {
	const count, size = 1000, 64 << 10
	var s Reported
	before := heap()
	for n := range count {
		s.First(fmt.Sprint(n, strings.Repeat("x", size)))
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
