package agent

import (
	"context"
	"errors"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// A spooled DEL is recorded in the store at once. If the view is not proven, nothing is written.
func TestSpooledDELsAreRecorded(t *testing.T) {
	node, _ := newNode(t)
	node.Changes = NewChanges(node.Service.Node.Store.Dirs(), node.Log)
	l := bound(t, "10.0.0.2", "db-0", "boot-1")
	update(t, node, func(tx *store.Tx) error {
		return errors.Join(tx.Put(l.Pool, l.Address, l), tx.SetNamespaceIDs("boot-1 another"))
	})
	spool := func() {
		n := node.Service.Node
		if err := n.Store.Spool(l.Holder.Attachment(), l.Pool, n.Clock()); err != nil {
			t.Fatal(err)
		}
	}
	waiting := func() int {
		records, err := node.Service.Node.Store.Spooled("boot-1")
		if err != nil {
			t.Fatal(err)
		}
		return len(records)
	}
	spool()
	if err := node.Service.Replay(t.Context()); !errors.Is(err, transact.ErrNoHostView) || waiting() != 1 {
		t.Errorf("without a view: %v, %d wait", err, waiting())
	}
	update(t, node, func(tx *store.Tx) error {
		return tx.SetNamespaceIDs(node.Service.Node.Host.NamespaceIDs("boot-1"))
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	task := Collect(node, &Health{}, &use{}, NewMetrics(node))
	go func() { ended <- task.Run(ctx) }()
	for range 2 {
		until(t, "it is replayed", func() bool { return waiting() == 0 })
		spool() // of a container that is released: the record alone is removed
	}
	stop()
	<-ended
	journal, _, err := node.Service.Journal(t.Context(), 0)
	if err != nil || len(journal) != 1 || journal[0].Event != store.EventReleased {
		t.Errorf("%v, %v", journal, err)
	}
}
