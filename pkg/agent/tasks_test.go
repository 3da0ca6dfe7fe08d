package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/background"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// A queued DEL is recorded in the store at once. If the view is not proven, nothing is written.
func TestQueuedDELsAreRecorded(t *testing.T) {
	node, _ := newNode(t)
	node.Changes = NewChanges(node.Service.Node.Store.Dirs(), node.Log)
	l := bound(t, "10.0.0.2", "db-0", "boot-1")
	update(t, node, func(tx *store.Tx) error {
		return errors.Join(tx.Put(l.Pool, l.Address, l), tx.SetNamespaceIDs("boot-1 another"))
	})
	queue := func() {
		n := node.Service.Node
		must.Succeed(t, n.Store.Run().AddDEL(l.Holder.Attachment(), l.Pool, n.Clock()))
	}
	waiting := func() int {
		records, err := node.Service.Node.Store.Run().QueuedDELs("boot-1")
		must.Succeed(t, err)
		return len(records)
	}
	queue()
	if err := node.Service.ApplyQueue(t.Context()); !errors.Is(err, operation.ErrNoHostView) || waiting() != 1 {
		t.Errorf("without a view: %v, %d wait", err, waiting())
	}
	update(t, node, func(tx *store.Tx) error {
		return tx.SetNamespaceIDs(node.Service.Node.Host.NamespaceIDs("boot-1"))
	})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	tasks := []Task{{"changes", node.Changes.Run}, Leases(node, &Health{}, &use{})}
	go func() { ended <- Run(ctx, node.Log, tasks) }()
	for range 2 {
		background.Until(t, "it is applied", func() bool { return waiting() == 0 })
		queue() // of a container that is released: the record alone is removed
	}
	stop()
	<-ended
	journal, _, err := node.Service.Journal(t.Context(), 0)
	if err != nil || len(journal) != 1 || journal[0].Event != store.EventReleased {
		t.Errorf("%v, %v", journal, err)
	}
}

// A queued DEL causes a signal by itself, and not only the next poll. A poll makes the directories
// again that are missing, so that it can be told from a signal of the DEL.
func TestQueuedDELIsSignalled(t *testing.T) {
	node, _ := newNode(t)
	n := node.Service.Node
	changes := NewChanges(n.Store.Dirs(), node.Log)
	signals := daemon.Any(&changes.Store)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { _ = changes.Run(ctx) }()
	<-signals // at the start, after the directories are watched
	for range 5 {
		must.Succeed(t, os.RemoveAll(n.Store.Run().Announcements()))
		who := lease.Attachment{ContainerID: "c1", IfName: "eth0"}
		must.Succeed(t, n.Store.Run().AddDEL(who, lease.Pool{}, n.Clock()))
		<-signals
		if _, err := os.Stat(n.Store.Run().Announcements()); errors.Is(err, fs.ErrNotExist) {
			return
		}
	}
	t.Error("only polls have caused signals")
}

// The file of a container that exists is written again only if it has been missing for a while,
// because host-local may be processing a DEL. That file is the only proof of the DEL here, because
// no other container exists.
func TestMissingFileMayBeADEL(t *testing.T) {
	for _, ends := range []bool{true, false} {
		node, _ := newNode(t)
		container := exec.Command("unshare", "--net", "sleep", "600")
		must.Succeed(t, container.Start())
		defer container.Wait()
		defer container.Process.Kill()
		l := bound(t, "10.0.0.2", "db-0", "boot-1")
		l.Pool.DataDir = t.TempDir()
		path := fmt.Sprintf("/proc/%d/ns/net", container.Process.Pid)
		background.Until(t, "the container has a namespace", func() bool {
			var err error
			l.Holder.Netns, err = node.Service.Node.Host.Netns(path)
			return err == nil && !isOwnNetns(t, node, l.Holder.Netns)
		})
		update(t, node, func(tx *store.Tx) error {
			return errors.Join(tx.Put(l.Pool, l.Address, l),
				tx.SetNamespaceIDs(node.Service.Node.Host.NamespaceIDs("boot-1")))
		})
		dir, err := hostlocal.Open(t.Context(), l.Pool)
		if err == nil {
			err = dir.SetMark(true, hostlocal.Owner{})
			dir.Close()
		}
		must.Succeed(t, err)
		c := newLeaseTask(node, &Health{}, &use{})
		clock, later := node.Service.Node.Clock, time.Duration(0)
		node.Service.Node.Clock = func() lease.Instant {
			now := clock()
			now.Boot += later
			return now
		}
		for range 2 {
			c.once(t.Context())
			if _, err := os.Lstat(dir.FilePath(l.Address)); err == nil {
				t.Error("the file was written at once")
			}
		}
		later = surveyInterval
		want := "c-db-0"
		if ends {
			want = "#held "
			must.Succeed(t, container.Process.Kill())
			_ = container.Wait()
		}
		c.once(t.Context())
		check.Contains(t, string(must.Read(t, dir.FilePath(l.Address))), want, "the container ends:", ends)
	}
}

// isOwnNetns reports whether a namespace is the one in which a child of this thread starts. That of
// the process is another one after TestReady has run on its first thread.
func isOwnNetns(t *testing.T, node Node, n lease.Netns) bool {
	own, err := node.Service.Node.Host.Netns("/proc/thread-self/ns/net")
	must.Succeed(t, err)
	return n.Same(own)
}
