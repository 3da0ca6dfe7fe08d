// Package ordinals knows which numbers the pods of a StatefulSet have: Kubernetes' own, Kruise's, and kinds that are like
// them.
package ordinals

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Set is the numbers of a workload's pods: the first Replicas from Start on that are not reserved. Its zero value has none.
type Set struct {
	Start, Replicas int64
	Reserved        []Range // in order, apart from each other: see Merge
}

// Range is from First to Last, both included.
type Range struct{ First, Last int64 }

// Of reads the spec of a workload as JSON has it: replicas, or otherwise where that is left out, ordinals.start
// (Kubernetes) and reserveOrdinals (Kruise: numbers, and words like "3" or "3-5"). What of it cannot be read is left out,
// and the error says so.
func Of(spec map[string]any, otherwise int64) (Set, error) {
	ordinals, _ := spec["ordinals"].(map[string]any)
	s := Set{Start: max(number(ordinals["start"], 0), 0), Replicas: number(spec["replicas"], otherwise)}
	var err error
	list, isList := spec["reserveOrdinals"].([]any)
	if !isList && spec["reserveOrdinals"] != nil {
		err = fmt.Errorf("reserveOrdinals is no list")
	}
	var reserved []Range
	for _, item := range list {
		r, ok := rangeOf(item)
		if !ok {
			err = fmt.Errorf("reserveOrdinals: %v is no number or range", item)
			continue
		}
		reserved = append(reserved, r)
	}
	s.Reserved = Merge(reserved)
	return s, err
}

// number reads what JSON and the API's own decoder make of an integer.
func number(v any, otherwise int64) int64 {
	switch n := v.(type) {
	case int64:
		return n
	case float64:
		if math.Abs(n) <= math.MaxInt32 {
			return int64(n)
		}
	}
	return otherwise
}

// Has tells whether a pod of that number should exist.
func (s Set) Has(n int64) bool {
	if n < s.Start {
		return false
	}
	before := n - s.Start
	for _, r := range s.Reserved {
		if r.First <= n && n <= r.Last {
			return false
		}
		if first, last := max(r.First, s.Start), min(r.Last, n-1); first <= last {
			before -= last - first + 1
		}
	}
	return before < s.Replicas
}

func rangeOf(item any) (Range, bool) {
	s, isWord := item.(string)
	if !isWord {
		n := number(item, -1)
		return Range{n, n}, n >= 0
	}
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	from, ok1 := parse(first)
	to, ok2 := parse(last)
	return Range{from, to}, ok1 && ok2 && from <= to
}

// Merge sorts ranges and joins those that overlap.
func Merge(ranges []Range) []Range {
	slices.SortFunc(ranges, func(a, b Range) int { return cmp.Compare(a.First, b.First) })
	var merged []Range
	for _, r := range ranges {
		if last := len(merged) - 1; last >= 0 && r.First <= merged[last].Last {
			merged[last].Last = max(merged[last].Last, r.Last)
			continue
		}
		merged = append(merged, r)
	}
	return merged
}

// parse reads a number: digits, at most 32 bits with a sign, as the API has it.
func parse(s string) (int64, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	return int64(n), err == nil
}

// InName is the number in the name of a workload's pod, as the workload writes it; false for any other name.
func InName(workload, pod string) (int64, bool) {
	digits, ok := strings.CutPrefix(pod, workload+"-")
	if !ok {
		return 0, false
	}
	n, ok := parse(digits)
	return n, ok && strconv.FormatInt(n, 10) == digits
}
