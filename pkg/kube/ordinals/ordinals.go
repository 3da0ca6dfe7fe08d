// Package ordinals computes the ordinals of the pods of numbered sets: workloads whose pods are
// named <workload>-<ordinal>, such as StatefulSets.
package ordinals

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kinds are the numbered sets that are known without configuration, in the version to read: the
// StatefulSets of Kubernetes and of OpenKruise.
var Kinds = []schema.GroupVersionKind{
	{Group: "apps", Version: "v1", Kind: "StatefulSet"},
	{Group: "apps.kruise.io", Version: "v1beta1", Kind: "StatefulSet"},
}

// Set is the ordinals of a workload's pods: the first Replicas from Start on that are not reserved.
// The zero value is empty.
type Set struct {
	Start, Replicas int64
	reserved        []span // sorted and disjoint, see merge
}

// span is the ordinals from First to Last, inclusive.
type span struct{ First, Last int64 }

// Of reads the spec of a workload as decoded from JSON: replicas (defaultReplicas if it is
// missing), ordinals.start (Kubernetes) and reserveOrdinals (Kruise: numbers, and strings like "3"
// or "3-5"). Invalid parts are ignored and reported by the error; the set is usable all the same.
func Of(spec map[string]any, defaultReplicas int64) (Set, error) {
	ordinals, _ := spec["ordinals"].(map[string]any)
	s := Set{Start: max(number(ordinals["start"], 0), 0), Replicas: number(spec["replicas"], defaultReplicas)}
	var err error
	list, isList := spec["reserveOrdinals"].([]any)
	if !isList && spec["reserveOrdinals"] != nil {
		err = fmt.Errorf("reserveOrdinals is not a list")
	}
	var reserved []span
	for _, item := range list {
		r, ok := rangeOf(item)
		if !ok {
			err = fmt.Errorf("reserveOrdinals: %v is not a number or range", item)
			continue
		}
		reserved = append(reserved, r)
	}
	s.reserved = merge(reserved)
	return s, err
}

// number returns an integer as decoded by encoding/json or by the API machinery, or defaultValue if
// v is none.
func number(v any, defaultValue int64) int64 {
	switch n := v.(type) {
	case int64:
		return n
	case float64:
		if math.Abs(n) <= math.MaxInt32 {
			return int64(n)
		}
	}
	return defaultValue
}

// Has reports whether a pod with ordinal n should exist.
func (s Set) Has(n int64) bool {
	if n < s.Start {
		return false
	}
	before := n - s.Start
	for _, r := range s.reserved {
		if r.First <= n && n <= r.Last {
			return false
		}
		if first, last := max(r.First, s.Start), min(r.Last, n-1); first <= last {
			before -= last - first + 1
		}
	}
	return before < s.Replicas
}

func rangeOf(item any) (span, bool) {
	s, isString := item.(string)
	if !isString {
		n := number(item, -1)
		return span{n, n}, n >= 0
	}
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	from, ok1 := parse(first)
	to, ok2 := parse(last)
	return span{from, to}, ok1 && ok2 && from <= to
}

// merge sorts ranges in place and joins those that overlap.
func merge(ranges []span) []span {
	slices.SortFunc(ranges, func(a, b span) int { return cmp.Compare(a.First, b.First) })
	var merged []span
	for _, r := range ranges {
		if last := len(merged) - 1; last >= 0 && r.First <= merged[last].Last {
			merged[last].Last = max(merged[last].Last, r.Last)
			continue
		}
		merged = append(merged, r)
	}
	return merged
}

// parse reads an ordinal: decimal digits, at most math.MaxInt32 as in the API.
func parse(s string) (int64, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	return int64(n), err == nil
}

// InName returns the ordinal in the name of a workload's pod. It reports false for any name that
// the workload would not generate, such as one with leading zeros.
func InName(workload, pod string) (int64, bool) {
	digits, ok := strings.CutPrefix(pod, workload+"-")
	if !ok {
		return 0, false
	}
	return Parse(digits)
}

// Parse returns the ordinal that the digits at the end of a name stand for. It reports false for
// anything but a decimal number without leading zeros, at most math.MaxInt32.
func Parse(digits string) (int64, bool) {
	n, ok := parse(digits)
	return n, ok && strconv.FormatInt(n, 10) == digits
}
