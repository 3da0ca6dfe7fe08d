package ipam

import (
	"fmt"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
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

// countingHost counts the holders that it is asked for.
type countingHost struct {
	transact.Host
	asked int
}

func (h *countingHost) QuickState(holder lease.Holder, boot string) lease.Liveness {
	h.asked++
	return h.Host.QuickState(holder, boot)
}

// A soft hold is for the pod with its UID. An ADD does not examine those of other pods of the name,
// of which there are many if a pod is recreated repeatedly.
func TestManySoftHoldsOfOneName(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	host := &countingHost{Host: w.service.Host}
	w.service.Host = host
	for i := range 50 {
		name := fmt.Sprint("former-", i)
		w.add(ask{pod: "job", uid: name, container: name})
		w.stop(name)
		w.burn(name)
	}
	host.asked = 0
	w.same("another UID", w.add(ask{pod: "job", uid: "new", container: "new"}), "10.0.0.52")
	if host.asked > 5 {
		t.Errorf("examined %d holders", host.asked)
	}
	w.same("the UID of one of them", w.add(ask{pod: "job", uid: "former-7", container: "back"}), "10.0.0.9")
}
