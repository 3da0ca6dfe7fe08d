package kube

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/json"
	"pgregory.net/rapid"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

func TestOrdinalsOf(t *testing.T) {
	for _, tt := range []struct {
		spec    string
		has     []int64
		hasNone []int64
		errs    bool
	}{
		{`{"replicas":3}`, []int64{0, 1, 2}, []int64{3, -1}, false},
		{`{}`, []int64{0}, []int64{1}, false}, // the default
		{`{"replicas":0}`, nil, []int64{0}, false},
		{`{"replicas":3,"ordinals":{"start":5}}`, []int64{5, 6, 7}, []int64{0, 4, 8}, false},
		{`{"replicas":3,"ordinals":{"start":-5}}`, []int64{0, 2}, []int64{-1, 3}, false},
		{`{"replicas":3,"reserveOrdinals":[1]}`, []int64{0, 2, 3}, []int64{1, 4}, false},
		{`{"replicas":3,"reserveOrdinals":["1","3-4"]}`, []int64{0, 2, 5}, []int64{1, 3, 4, 6}, false},
		{`{"replicas":2,"reserveOrdinals":[1,"0-2","2-3"]}`, []int64{4, 5}, []int64{0, 1, 2, 3, 6}, false},
		{`{"replicas":2,"reserveOrdinals":["0-5"],"ordinals":{"start":5}}`, []int64{6, 7}, []int64{5, 8}, false},
		{`{"replicas":1,"reserveOrdinals":["x","5-1",-3.0,null,"-"]}`, []int64{0}, []int64{1}, true},
		{`{"replicas":1,"reserveOrdinals":"0"}`, []int64{0}, []int64{1}, true},
		{`{"replicas":2,"reserveOrdinals":["1-2147483646"]}`, []int64{0, 2147483647}, []int64{1, 2147483646}, false},
		{`{"replicas":1,"reserveOrdinals":["0-9000000000000000000"]}`, []int64{0}, []int64{9000000000000000001}, true},
		{`{"replicas":1,"reserveOrdinals":[1e300],"ordinals":{"start":-1e300}}`, []int64{0}, []int64{1}, true},
	} {
		var spec map[string]any
		must.Succeed(t, json.Unmarshal([]byte(tt.spec), &spec))
		s, err := OrdinalsOf(spec, 1)
		check.Equal(t, err != nil, tt.errs, tt.spec, err)
		for _, n := range tt.has {
			if !s.Has(n) {
				t.Errorf("%s: %d is missing", tt.spec, n)
			}
		}
		for _, n := range tt.hasNone {
			if s.Has(n) {
				t.Errorf("%s: %d should not be", tt.spec, n)
			}
		}
	}
}

// TestReservedRangesAreLimited reserves each other ordinal.
func TestReservedRangesAreLimited(t *testing.T) {
	var reserved []any
	for n := range int64(2000) {
		reserved = append(reserved, 2*n)
	}
	s, err := OrdinalsOf(map[string]any{"reserveOrdinals": reserved[:maxReserved]}, 1)
	must.Succeed(t, err)
	check.Equal(t, len(s.reserved), maxReserved, "ranges")
	s, err = OrdinalsOf(map[string]any{"reserveOrdinals": reserved}, 1)
	if err == nil || len(s.reserved) != maxReserved {
		t.Errorf("%d ranges, %v", len(s.reserved), err)
	}
}

// TestHasMatchesCounting compares the arithmetic of Has with counting one by one.
func TestHasMatchesCounting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Ordinals{Start: rapid.Int64Range(0, 9).Draw(t, "start"),
			Replicas: rapid.Int64Range(0, 9).Draw(t, "replicas")}
		for range rapid.IntRange(0, 4).Draw(t, "ranges") {
			first := rapid.Int64Range(0, 20).Draw(t, "first")
			s.reserved = append(s.reserved, span{first, first + rapid.Int64Range(0, 5).Draw(t, "more")})
		}
		want := map[int64]bool{}
		for n := s.Start; int64(len(want)) < s.Replicas; n++ {
			free := true
			for _, r := range s.reserved {
				free = free && (n < r.First || n > r.Last)
			}
			if free {
				want[n] = true
			}
		}
		s.reserved = merge(s.reserved)
		for n := range int64(60) {
			if s.Has(n) != want[n] {
				t.Fatalf("%+v has %d: %v", s, n, s.Has(n))
			}
		}
	})
}

// FuzzOrdinalsOf verifies that any spec is read in bounded time, and to a set that Has accepts.
func FuzzOrdinalsOf(f *testing.F) {
	f.Add([]byte(`{"replicas":3,"reserveOrdinals":[1,"3-4"]}`), int64(3))
	f.Add([]byte(`{"replicas":1,"reserveOrdinals":["0-2147483647"],"ordinals":{"start":2147483647}}`), int64(1)<<62)
	f.Fuzz(func(t *testing.T, raw []byte, n int64) {
		var spec map[string]any
		if json.Unmarshal(raw, &spec) != nil {
			return
		}
		if s, _ := OrdinalsOf(spec, 1); s.Has(n) && (s.Replicas <= 0 || n < s.Start) {
			t.Errorf("%s has %d", raw, n)
		}
	})
}
