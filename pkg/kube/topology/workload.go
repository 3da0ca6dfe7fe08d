package topology

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// Workload is what must be known of a StatefulSet, or of a kind that is like one.
type Workload struct {
	Target
	APIVersion  string
	UID         types.UID
	Created     time.Time
	Leaving     bool // being deleted
	Annotations map[string]string
	Ordinals    Ordinals
}

// workloadOf reads a workload of any kind. Fields that it does not have are those of a StatefulSet that leaves them out.
func workloadOf(u *unstructured.Unstructured) *Workload {
	spec, _, _ := unstructured.NestedMap(u.Object, "spec")
	start, _, _ := unstructured.NestedFieldNoCopy(spec, "ordinals", "start")
	w := &Workload{
		Target:      Target{u.GroupVersionKind().GroupKind(), u.GetNamespace(), u.GetName()},
		APIVersion:  u.GetAPIVersion(),
		UID:         u.GetUID(),
		Created:     u.GetCreationTimestamp().Time,
		Leaving:     u.GetDeletionTimestamp() != nil,
		Annotations: u.GetAnnotations(),
		Ordinals:    Ordinals{Start: number(start, 0), Replicas: number(spec["replicas"], 1)},
	}
	list, _ := spec["reserveOrdinals"].([]any)
	var ranges []Range
	for _, item := range list {
		if r, ok := rangeOf(item); ok {
			ranges = append(ranges, r)
		}
	}
	w.Ordinals.Reserved = merge(ranges)
	return w
}

// number reads what JSON and the API's own decoder make of an integer.
func number(v any, otherwise int64) int64 {
	switch n := v.(type) {
	case int64:
		return n
	case float64:
		return int64(n)
	}
	return otherwise
}

// Ordinals are the numbers of a workload's pods: the first Replicas from Start on that are not reserved.
type Ordinals struct {
	Start, Replicas int64
	Reserved        []Range // in order, apart from each other
}

// Range is from First to Last, both included.
type Range struct{ First, Last int64 }

// Has tells whether a pod of that number should exist.
func (o Ordinals) Has(n int64) bool {
	if n < o.Start {
		return false
	}
	before := n - o.Start
	for _, r := range o.Reserved {
		if r.First <= n && n <= r.Last {
			return false
		}
		if first, last := max(r.First, o.Start), min(r.Last, n-1); first <= last {
			before -= last - first + 1
		}
	}
	return before < o.Replicas
}

// rangeOf reads one item of reserveOrdinals: 3, "3" or "3-5".
func rangeOf(item any) (Range, bool) {
	s, ok := item.(string)
	if !ok {
		n := number(item, -1)
		return Range{n, n}, n >= 0
	}
	first, last, isRange := strings.Cut(s, "-")
	if !isRange {
		last = first
	}
	from, ok1 := ordinal(first)
	to, ok2 := ordinal(last)
	return Range{from, to}, ok1 && ok2 && from <= to
}

// merge sorts ranges and joins those that overlap.
func merge(ranges []Range) []Range {
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

// ordinal reads the number of a pod: digits, at most a 32-bit number, as the API has it.
func ordinal(s string) (int64, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	return int64(n), err == nil
}

// ordinalOf is the number in the name of a workload's pod.
func ordinalOf(workload, pod string) (int64, bool) {
	s, ok := strings.CutPrefix(pod, workload+"-")
	if !ok {
		return 0, false
	}
	return ordinal(s)
}
