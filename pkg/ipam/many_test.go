package ipam

import (
	"fmt"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

// TestManyRangeSets verifies that the cost of a call does not grow with the square of the number of
// range sets: with 2,000, of which each has to make a hold yield, it would take a minute. No call
// may hold the lock of the store longer than others wait for it.
func TestManyRangeSets(t *testing.T) {
	ranges := make([]string, 2000)
	for i := range ranges {
		ranges[i] = fmt.Sprintf("10.%d.%d.%d/30", i>>14, byte(i>>6), byte(i<<2))
	}
	w := newWorld(t, ranges...)
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"an ADD", func() { w.add(ask{pod: "a", container: "c1"}) }},
		{"the same ADD again", func() { w.add(ask{pod: "a", container: "c1"}) }},
		{"its DEL", func() { w.stop("c1") }},
		{"an ADD of another pod", func() { w.add(ask{pod: "b", container: "c2"}) }},
	} {
		began := processorTime(t)
		step.do()
		if took := processorTime(t) - began; took > store.MaxWait {
			t.Errorf("%s: %s of processor time, want less than %s", step.name, took, store.MaxWait)
		}
	}
}
