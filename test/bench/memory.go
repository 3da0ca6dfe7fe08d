package main

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/lab"
)

// memory measures the memory of an agent whose store holds addresses for pods that are away, while
// more clients scrape it than it serves at a time. The limit in daemonset.yaml is chosen by it.
func (b *bench) memory() {
	b.node = lab.NewNode(b)
	b.sandbox = b.node.Sandbox(lab.NewPod("default", "bench", "10"))
	for _, leases := range []int{250, 1000, 10_000, 50_000} {
		c := b.contender("leasehold", leases)
		c.hold()
		c.call("ADD", c.id())
		a := &agentRun{c: c}
		a.start("--log-level=debug")
		a.waitFor(func() bool {
			return strings.Contains(a.text(), `msg="node surveyed"`) && strings.Contains(a.text(), "msg=serving")
		}, 3*time.Minute)
		var leave []func()
		for range 8 {
			leave = append(leave, a.scrape())
		}
		length := time.Duration(b.rounds(60)) * time.Second
		b.progress("%d held addresses: %v", leases, length)
		time.Sleep(length)
		resident, peak := a.memory("VmRSS"), a.memory("VmHWM")
		for _, stop := range leave {
			stop()
		}
		a.stop()
		what := fmt.Sprintf("agent with %d held addresses and 8 scrapers: ", leases)
		b.add(figure{Figure: what + "resident memory", Unit: "MiB", Leasehold: resident})
		b.add(figure{Figure: what + "at most", Unit: "MiB", Leasehold: peak})
	}
}

// hold releases all leases of the store, whose windows begin.
func (c *contender) hold() {
	s := store.New(store.Dirs{State: filepath.Join(c.dir, "state"),
		Run: filepath.Join("/run/lab", filepath.Base(c.dir))})
	c.b.check(s.Update(context.Background(), store.Options{}, func(tx *store.Tx) error {
		var all []lease.Lease
		tx.After(store.Position{}, math.MaxInt, func(l lease.Lease, err error) {
			c.b.check(err)
			all = append(all, l)
		})
		for _, l := range all {
			held, err := lease.Apply(l, lease.Release{Holder: l.Holder}, l.BoundAt)
			if err == nil {
				err = tx.Put(l.Pool, l.Address, held)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
}
