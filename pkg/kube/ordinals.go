package kube

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kinds are kinds of workloads with numbered pods, with the versions to read.
type Kinds []schema.GroupVersionKind

// StatefulSets are supported without configuration: those of Kubernetes and of OpenKruise.
var StatefulSets = Kinds{
	{Group: "apps", Version: "v1", Kind: "StatefulSet"},
	{Group: "apps.kruise.io", Version: "v1beta1", Kind: "StatefulSet"},
}

// Find returns the element with a group and kind. It reports false if there is none.
func (k Kinds) Find(kind schema.GroupKind) (found schema.GroupVersionKind, ok bool) {
	i := slices.IndexFunc(k, func(known schema.GroupVersionKind) bool { return known.GroupKind() == kind })
	if i < 0 {
		return found, false
	}
	return k[i], true
}

// ControllerOf returns the kind of an object's controller and the reference to it. Both are zero if
// the object has none.
func ControllerOf(o metav1.Object) (kind schema.GroupKind, c metav1.OwnerReference) {
	if controller := metav1.GetControllerOfNoCopy(o); controller != nil {
		c = *controller
	}
	return schema.FromAPIVersionAndKind(c.APIVersion, c.Kind).GroupKind(), c
}

// Ordinals are those of the pods of a workload with numbered pods, for example a StatefulSet, which
// names its pods <workload>-<ordinal>. They are the first Replicas ordinals from Start on, without
// the reserved ones. The zero value is empty.
type Ordinals struct {
	Start, Replicas int64
	reserved        []span // sorted and disjoint, see merge
}

// maxReserved is how many separate ranges of reserved ordinals Ordinals have, at most.
const maxReserved = 1024

// span contains the ordinals from First to Last, inclusive.
type span struct{ First, Last int64 }

// OrdinalsOf returns the ordinals that the spec of a workload requests. spec is decoded from JSON
// by the API machinery, which makes integers int64. OrdinalsOf reads replicas, or uses
// defaultReplicas if replicas is missing. It also reads ordinals.start (Kubernetes) and
// reserveOrdinals (OpenKruise), a list of numbers and of strings such as "3" or "3-5". If a part of
// reserveOrdinals is invalid, OrdinalsOf ignores that part, and returns an error together with the
// set of the valid parts.
func OrdinalsOf(spec map[string]any, defaultReplicas int64) (Ordinals, error) {
	ordinals, _ := spec["ordinals"].(map[string]any)
	s := Ordinals{Start: max(number(ordinals["start"], 0), 0), Replicas: number(spec["replicas"], defaultReplicas)}
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
	if len(s.reserved) > maxReserved {
		err = fmt.Errorf("reserveOrdinals has %d separate ranges; want at most %d", len(s.reserved), maxReserved)
		s.reserved = slices.Clone(s.reserved[:maxReserved])
	}
	return s, err
}

// number returns v if it is an integer, and otherwise defaultValue.
func number(v any, defaultValue int64) int64 {
	if n, isInteger := v.(int64); isInteger {
		return n
	}
	return defaultValue
}

// Has reports whether the workload should have a pod with ordinal n.
func (s Ordinals) Has(n int64) bool {
	if n < s.Start {
		return false
	}
	// before becomes the number of ordinals below n that are not reserved.
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

// rangeOf returns the ordinals of an element of reserveOrdinals. It reports false if the element is
// invalid.
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

// merge sorts ranges in place, and returns them with overlapping ranges joined.
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

// parse parses decimal digits, at most math.MaxInt32, the maximum in the API. It accepts leading
// zeros.
func parse(s string) (int64, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	return int64(n), err == nil
}

// OrdinalIn returns the ordinal in the name of a pod. It reports false if the workload would not
// create a pod of that name, for example because the ordinal has leading zeros.
func OrdinalIn(workload, pod string) (int64, bool) {
	digits, ok := strings.CutPrefix(pod, workload+"-")
	if !ok {
		return 0, false
	}
	return ParseOrdinal(digits)
}

// ParseOrdinal parses the ordinal at the end of a pod's name. It reports false for anything but a
// decimal number without leading zeros, at most math.MaxInt32.
func ParseOrdinal(digits string) (int64, bool) {
	n, ok := parse(digits)
	return n, ok && strconv.FormatInt(n, 10) == digits
}
