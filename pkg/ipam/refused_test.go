package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// A call is one transaction: if any write of it fails, the call fails and
// nothing has changed.
func TestAWriteThatFailsFailsTheCall(t *testing.T) {
	assign := func(a ask) func(context.Context, *world) error {
		return func(ctx context.Context, w *world) error {
			if _, ok := w.netns["/run/netns/"+a.container]; !ok {
				w.unpack(a.container)
			}
			_, err := w.service.Assign(ctx, w.request(a))
			return err
		}
	}
	collect := func(ctx context.Context, w *world) error {
		_, err := w.service.Act(ctx, maintain.Plan(w.survey()))
		return err
	}
	pod := ask{pod: "db-0", container: "c1", window: hour}
	again := ask{pod: "db-0", container: "c2", window: hour}
	// This call makes another attempt, in which the writes have to fail, too.
	const reassigned = "a DEL of a container whose address host-local has given away"
	for story, c := range map[string]struct {
		before func(*world)
		call   func(context.Context, *world) error
	}{
		"a first ADD": {func(*world) {}, assign(pod)},
		"a cut window": {func(w *world) { w.add(ask{container: "x"}); w.options.MaxWindow = lease.Window(time.Minute) },
			assign(pod)},
		"the last but 0": {func(w *world) { w.setRanges("10.0.0.0/29 10.0.0.2-10.0.0.2") }, assign(pod)},
		"a pod comes back": {func(w *world) {
			w.add(pod)
			w.stop("c1")
		}, assign(again)},
		"a take-over": {func(w *world) {
			w.add(pod)
			w.burn("c1")
		}, assign(again)},
		"a pod without a window whose sandbox is dead": {func(w *world) {
			w.add(ask{pod: "db-0", container: "c1", uid: "u1"})
			w.burn("c1")
		}, assign(ask{pod: "db-0", container: "c2", uid: "u1"})},
		"a newcomer is sent away": {func(w *world) { w.add(pod) }, assign(again)},
		"a newcomer has waited": {func(w *world) {
			w.add(pod)
			w.refused(ask{pod: "db-0", container: "c3", uid: "u2", window: hour}, ErrAddressInUse)
			w.after(2 * time.Minute)
		}, assign(ask{pod: "db-0", container: "c4", uid: "u2", window: hour})},
		"a request for another address": {func(w *world) {
			w.add(pod)
			w.stop("c1")
		}, assign(ask{pod: "db-0", container: "c2", window: hour, requested: "10.0.0.4"})},
		"a full pool": {func(w *world) {
			w.setRanges("10.0.0.0/29 10.0.0.2-10.0.0.3")
			w.options.OnExhaustion = policy.Yield
			w.add(pod)
			w.add(ask{pod: "dead", container: "c3"})
			w.stop("c1")
			w.burn("c3")
			w.after(lookEvery)
		}, assign(ask{pod: "x", container: "c2"})},
		"an ADD after a boot": {func(w *world) {
			w.add(pod)
			w.add(ask{pod: "db-1", container: "c3", window: hour})
			w.stop("c3")
			w.reboot()
			w.now.Wall = w.now.Wall.Add(-hour)
		}, assign(again)},
		"host-local has given an address": {func(w *world) {
			w.add(pod)
			w.hostLocal("10.0.0.3", "theirs")
		}, assign(ask{pod: "x", container: "c2"})},
		"host-local has processed the DEL of the pod": {func(w *world) {
			w.add(pod)
			w.burn("c1")
			w.wipe(w.path("10.0.0.2"))
		}, assign(again)},
		"host-local has processed the DEL of a requested address": {func(w *world) {
			w.add(pod)
			w.burn("c1")
			w.wipe(w.path("10.0.0.2"))
		}, assign(ask{pod: "x", container: "c2", requested: "10.0.0.2"})},
		"host-local has given the container's address away": {func(w *world) {
			w.add(pod)
			w.burn("c1")
			w.wipe(w.path("10.0.0.2"))
			w.hostLocal("10.0.0.2", "theirs")
		}, assign(ask{pod: "db-0", container: "c1", window: hour, netns: "/run/netns/c1"})},
		"host-local's container asks us": {func(w *world) { w.hostLocal("10.0.0.7", "c1") }, assign(pod)},
		"another address in the namespace of the former container": {func(w *world) { w.add(pod) },
			assign(ask{pod: "db-0", container: "c2", window: hour, netns: "/run/netns/c1", requested: "10.0.0.4"})},
		"an address of a dead holder is requested": {func(w *world) {
			w.add(ask{container: "dead"})
			w.burn("dead")
		}, assign(ask{pod: "x", container: "c2", requested: "10.0.0.2"})},
		"the configuration has other ranges": {func(w *world) {
			w.add(pod)
			w.stop("c1")
			w.setRanges("10.0.0.0/29", "fd00::/64")
		}, assign(again)},
		"CHECK of host-local's container": {func(w *world) { w.hostLocal("10.0.0.7", "theirs") },
			func(ctx context.Context, w *world) error {
				return w.service.Verify(ctx, w.request(ask{container: "theirs"}))
			}},
		"a DEL of host-local's container": {func(w *world) { w.hostLocal("10.0.0.7", "theirs") },
			func(ctx context.Context, w *world) error {
				return w.service.Update(ctx, w.where().scope(), func(c *transact.Call) error {
					files := []netip.Addr{netip.MustParseAddr("10.0.0.7")}
					if err := c.AdmitHolder(w.where().Pool, on("theirs", "eth0"), files); err != nil {
						return err
					}
					return released(c, on("theirs", "eth0"))
				})
			}},
		"a DEL": {func(w *world) { w.add(pod) }, func(ctx context.Context, w *world) error {
			return w.service.Update(ctx, w.where().scope(), func(c *transact.Call) error {
				return released(c, on("c1", "eth0"))
			})
		}},
		"a DEL beyond maxHeldShare": {func(w *world) {
			w.options.MaxHeldShare = 0.1
			w.setRanges("10.0.0.0/24 10.0.0.2-10.0.0.5")
			w.add(ask{pod: "db-1", container: "c0", window: hour})
			w.stop("c0")
			w.add(pod)
		}, func(ctx context.Context, w *world) error {
			return w.service.Update(ctx, w.where().scope(), func(c *transact.Call) error {
				return released(c, on("c1", "eth0"))
			})
		}},
		reassigned: {func(w *world) {
			w.add(pod)
			w.burn("c1")
			w.wipe(w.path("10.0.0.2"))
			w.hostLocal("10.0.0.2", "theirs")
		}, func(ctx context.Context, w *world) error {
			return w.service.Update(ctx, w.where().scope(), func(c *transact.Call) error {
				return released(c, on("c1", "eth0"))
			})
		}},
		"a full pool, of which host-local has given an address away": {func(w *world) {
			w.setRanges("10.0.0.0/29 10.0.0.2-10.0.0.3")
			w.add(pod)
			w.add(ask{pod: "living", container: "c3"})
			w.burn("c1")
			w.wipe(w.path("10.0.0.2"))
			w.hostLocal("10.0.0.2", "theirs")
		}, assign(ask{pod: "x", container: "c2"})},
		"a GC": {func(w *world) { w.add(pod) }, func(ctx context.Context, w *world) error {
			return w.service.Collect(ctx, w.where().Pool, nil)
		}},
		"a hold is over": {func(w *world) {
			w.add(pod)
			w.stop("c1")
			w.settle()
			w.after(hour)
		}, collect},
		"a sandbox is dead": {func(w *world) {
			w.add(pod)
			w.add(ask{pod: "living", container: "c0"})
			w.burn("c1")
		}, collect},
		"a window is followed": {func(w *world) { w.add(ask{pod: "db-0", container: "c1", silent: true}) },
			func(ctx context.Context, w *world) error {
				return w.service.Follow(ctx, []maintain.PodWindow{{Namespace: "db", Name: "db-0", UID: "uid-of-c1",
					Window: lease.Window(hour)}})
			}},
		"a followed window is cut": {func(w *world) {
			w.options.MaxWindow = lease.Window(time.Minute)
			w.add(ask{pod: "db-0", container: "c1", silent: true})
		}, func(ctx context.Context, w *world) error {
			return w.service.Follow(ctx, []maintain.PodWindow{
				{Namespace: "db", Name: "db-0", UID: "uid-of-c1", Window: lease.Window(hour)}})
		}},
		"the end is put off": {func(w *world) {
			w.add(pod)
			w.stop("c1")
		}, func(ctx context.Context, w *world) error {
			return w.service.Defer(ctx, w.refs("db-0"), 2*hour)
		}},
		"a hold is given up": {func(w *world) {
			w.add(pod)
			w.stop("c1")
		}, func(ctx context.Context, w *world) error { return w.revokePods(ctx, w.leaseOf("db-0")) }},
		"a stored window is forgotten": {func(w *world) {
			w.add(pod)
			w.follow("uid-of-c1", hour)
			w.stop("c1")
			w.after(hour)
			w.collect()
			w.after(48 * hour)
		}, func(ctx context.Context, w *world) error { return w.service.ForgetWindows(ctx) }},
		"a repair": {func(w *world) {
			w.add(pod)
			spoilRecord(t, filepath.Join(w.stateDir(), "leases.db"), "db-0")
			w.wipe(w.path("10.0.0.2"))
		}, func(ctx context.Context, w *world) error { return w.service.Repair(ctx) }},
		"a hardware address": {func(w *world) { w.add(pod) }, func(ctx context.Context, w *world) error {
			_, _, err := w.service.KeepMAC(ctx, on("c1", "eth0"), []netip.Addr{w.leaseOf("db-0").Address},
				[]byte{2, 0, 0, 0, 0, 1}, false)
			return err
		}},
	} {
		t.Run(story, func(t *testing.T) {
			w := newWorld(t, "10.0.0.0/24")
			w.network = "another"
			w.add(ask{container: "first"})
			w.network = "cbr0"
			c.before(w)
			refusal := errors.New("no")
			for n := 0; ; n++ {
				before, writes := w.everything(), 0
				err := c.call(store.RefuseWrites(context.Background(), func() error {
					if writes++; writes == n+1 || writes > n && story == reassigned {
						return refusal
					}
					return nil
				}), w)
				if writes <= n { // all of them were made
					if n == 0 || before == w.everything() || err != nil && !isRefusal(err) {
						t.Errorf("after %d writes: %v, and the store is as before: %v", n, err,
							before == w.everything())
					}
					return
				}
				if !errors.Is(err, refusal) {
					t.Errorf("write %d failed, and the call says %v", n+1, err)
				}
				if after := w.everything(); after != before {
					t.Fatalf("write %d failed, and yet it is\n%s\nbefore it was\n%s", n+1, after, before)
				}
			}
		})
	}
}

// released is what a DEL does in its transaction.
func released(c *transact.Call, who lease.Attachment) error {
	_, err := c.Release(who, lease.Pool{}, c.Now, "DEL")
	return err
}

// everything prints all that the store and host-local's directory know.
func (w *world) everything() string {
	var out string
	w.view(func(tx *store.Tx) {
		tx.All(func(l lease.Lease, err error) bool {
			out += fmt.Sprintf("%+v %v\n", l, err)
			return true
		})
		tx.Journal(func(n store.Entry) bool {
			out += fmt.Sprintf("%+v\n", n)
			return true
		})
		tx.WindowsAfter("", 99, func(k lease.Key, d lease.Window, at time.Time) { out += fmt.Sprint(k, d, at, "\n") })
		for _, set := range w.sets {
			out += fmt.Sprint(tx.Cursor(w.where().Pool, set.ID()), tx.Counts(w.where().Pool, set.ID()), "\n")
		}
		out += fmt.Sprint(tx.Boot(), tx.LastFullScan(w.where().Pool), tx.NamespaceIDs(), tx.Counters(), tx.Usage())
	})
	return out
}
