package ipam

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

func (w *world) survey() maintain.Survey {
	w.t.Helper()
	if w.released {
		w.settle() // as the agent does at once
	}
	v, err := w.service.Survey(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

// plan is what is due, as "release 10.0.0.2".
func (w *world) plan() string {
	w.t.Helper()
	var out []string
	for _, a := range maintain.Plan(w.survey()) {
		out = append(out, fmt.Sprint(a.Do, " ", a.Lease.Address))
	}
	return strings.Join(out, ", ")
}

func (w *world) collect() string {
	w.t.Helper()
	plan := w.plan()
	if _, err := w.service.Act(context.Background(), maintain.Plan(w.survey())); err != nil {
		w.t.Fatal(err)
	}
	return plan
}

func (w *world) expect(got, want, when string) {
	w.t.Helper()
	if got != want {
		w.t.Errorf("%s: got %q, want %q", when, got, want)
	}
}

func TestWhatIsDueIsDoneOnce(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.expect(w.plan(), "", "a store that was never used")
	w.add(ask{pod: "living", container: "c1", window: time.Hour})
	w.add(ask{pod: "over", container: "c2", window: time.Minute})
	w.add(ask{pod: "held", container: "c3", window: time.Hour})
	w.add(ask{pod: "dead", container: "c4", window: time.Hour})
	w.add(ask{container: "c5"})
	w.expect(w.plan(), "", "all live")
	w.del("c2")
	w.del("c3")
	w.burn("c3")
	w.after(2 * time.Minute)
	w.expect(w.plan(), "", "the time of one is over, and its sandbox is not gone")
	w.burn("c2")
	w.burn("c4")
	w.burn("c5")
	w.expect(w.collect(), "expire 10.0.0.3, release 10.0.0.5, release 10.0.0.6", "three are due")
	w.expect(w.collect(), "", "and then nothing is")
	w.expect(w.show(), "10.0.0.2 living Bound, 10.0.0.4 held Held, 10.0.0.5 dead Held", "what is left")
}

// show is what the store has, as "10.0.0.2 db-0 Bound".
func (w *world) show() string {
	var out []string
	w.view(func(tx *store.Tx) {
		tx.All(func(l lease.Lease, err error) bool {
			out = append(out, fmt.Sprint(l.Address, " ", l.Name, " ", l.State))
			return true
		})
	})
	return strings.Join(out, ", ")
}

// The file of a hold is not missed, and that of a container is.
func TestNoFileIsMissedThatNobodyMade(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-1", container: "c2"})
	w.add(ask{pod: "db-2", container: "c3", window: time.Hour})
	w.stop("c3")
	w.wipe(w.path("10.0.0.3"))
	w.expect(w.plan(), "", "that of a hold: host-local does not release holds")
	w.wipe(w.path("10.0.0.2"))
	w.expect(w.plan(), "mirror 10.0.0.2", "that of a container")
}

// A plan is old when Act performs it: leases that have changed since are not touched.
func TestAnOldPlanHarmsNobody(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "other", container: "c0"})
	w.add(ask{pod: "db-0", container: "c1", window: time.Hour})
	w.add(ask{pod: "db-1", container: "c2", window: time.Minute})
	w.add(ask{pod: "db-2", container: "c3", window: time.Hour})
	w.burn("c1")
	w.del("c2")
	w.burn("c2")
	w.after(59 * time.Second)
	w.burn("c3")
	old := w.survey()
	old.Now.Boot, old.Now.Wall = old.Now.Boot+time.Hour, old.Now.Wall.Add(time.Hour) // by a clock that runs ahead
	old.Last[maintain.RefTo(w.leaseOf("db-1"))] = lease.Dead
	plan := maintain.Plan(old)
	if len(plan) != 3 {
		t.Fatalf("planned: %+v", plan)
	}
	w.add(ask{pod: "db-0", container: "c1b", window: time.Hour}) // takes over
	w.add(ask{pod: "db-1", container: "c2b", window: time.Minute})
	w.netns["/run/netns/c3"] = w.leaseOf("db-2").Holder.Netns.Ino // never was dead
	done, err := w.service.Act(context.Background(), plan)
	if err != nil || len(done.Taken) > 0 {
		t.Fatalf("%v; performed: %v, want nothing", err, done.Taken)
	}
	w.expect(w.show(), "10.0.0.2 other Bound, 10.0.0.3 db-0 Bound, 10.0.0.4 db-1 Bound, 10.0.0.5 db-2 Bound",
		"all live on")
}

// The proof that a container is dead is not one for the container that has its address since.
func TestAProofOfDeathIsOfOneContainer(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "other", container: "c0"})
	w.add(ask{pod: "db-0", container: "c1", window: time.Hour})
	w.burn("c1")
	plan := maintain.Plan(w.survey())
	w.add(ask{pod: "db-0", container: "c2", window: time.Hour})
	w.inPID[w.last] = true // its mount goes before its processes do
	w.burn("c2")
	if _, err := w.service.Act(context.Background(), plan); err != nil || len(plan) != 1 {
		t.Fatalf("%+v, %v", plan, err)
	}
	w.expect(w.show(), "10.0.0.2 other Bound, 10.0.0.3 db-0 Bound", "it lives")
}

// refs are the leases of a pod.
func (w *world) refs(pod string) (refs []maintain.Ref) {
	w.view(func(tx *store.Tx) {
		tx.All(func(l lease.Lease, err error) bool {
			if l.Name == pod {
				refs = append(refs, maintain.RefTo(l))
			}
			return err == nil
		})
	})
	return refs
}

func (w *world) leaseOf(pod string) (found lease.Lease) {
	w.view(func(tx *store.Tx) {
		tx.All(func(l lease.Lease, err error) bool {
			if l.Name == pod {
				found = l
			}
			return true
		})
	})
	return found
}

func TestNothingIsDoneOnHalfAView(t *testing.T) {
	broken := map[string]func(*world){
		"the processes cannot all be asked": func(w *world) { w.blind = true },
		"another process namespace":         func(w *world) { w.spaces = "elsewhere" },
		"no namespace is to be seen":        func(w *world) { clear(w.netns) },
	}
	for story, breakIt := range broken {
		t.Run(story, func(t *testing.T) {
			w := newWorld(t, "10.0.0.0/24")
			w.add(ask{pod: "a", container: "c1", window: time.Hour})
			w.add(ask{pod: "b", container: "c2", window: time.Minute})
			w.add(ask{pod: "c", container: "c3", window: time.Hour})
			w.burn("c3")
			before := w.show()
			breakIt(w)
			w.expect(w.collect(), "", story)
			w.expect(w.show(), before, story)
		})
	}
}

// A survey that cannot read the spool fails: a DEL in it may be the reason for a lease's end.
func TestASurveyNeedsTheSpool(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "a", container: "c1", window: time.Hour})
	spool := filepath.Join(w.service.Store.Dirs().Run, "spool")
	if err := errors.Join(os.RemoveAll(spool), os.Symlink("spool", spool)); err != nil {
		t.Fatal(err)
	}
	if v, err := w.service.Survey(t.Context()); !errors.Is(err, store.ErrIO) {
		t.Errorf("%+v, %v", v, err)
	}
}

func TestABlindSurveySaysSo(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "a", container: "c1", window: time.Hour})
	if v := w.survey(); v.Unsafe != nil || v.Unproven != nil {
		t.Errorf("all is to be seen, and it says %v, %v", v.Unsafe, v.Unproven)
	}
	w.spaces = "in a container"
	if v := w.survey(); !errors.Is(v.Unsafe, transact.ErrNoHostView) || !errors.Is(v.Unsafe, host.ErrNotHost) {
		t.Errorf("another view: %v", v.Unsafe)
	}
	w.spaces = ""
	clear(w.netns)
	w.blind = true
	if v := w.survey(); !errors.Is(v.Unsafe, transact.ErrNoHostView) ||
		!strings.Contains(v.Unsafe.Error(), "not one looks alive") || !strings.Contains(v.Unsafe.Error(), "/proc/77") {
		t.Errorf("a node without living holders is not doubtful: %v", v.Unsafe)
	}
	w.blind, w.first = false, true
	forget := func(tx *store.Tx) error { return tx.SetNamespaceIDs("") }
	err := w.service.Store.Update(t.Context(), store.Options{}, forget)
	if v := w.survey(); err != nil || !errors.Is(v.Unsafe, transact.ErrNoHostView) ||
		!strings.Contains(v.Unsafe.Error(), "not one looks alive") {
		t.Errorf("the plugin has not said where it runs: %v, %v", v.Unsafe, err)
	}
}

// A call that cannot see where it runs takes back nothing that others have said of it.
func TestACallThatCannotSeeWhereItRunsSaysNothing(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "a", container: "c1"})
	w.spaces = "unreadable"
	w.add(ask{pod: "b", container: "c2"})
	w.spaces = ""
	if v := w.survey(); v.Unsafe != nil || v.Unproven != nil {
		t.Errorf("%v, %v", v.Unsafe, v.Unproven)
	}
}

// Where one process cannot be asked no death is ever proven, and that is said.
func TestWhatIsInDoubtIsSaid(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "living", container: "c1"})
	w.add(ask{pod: "a", container: "c2"})
	w.blind = true
	if v := w.survey(); v.Doubtful != 0 || v.Doubt != nil {
		t.Errorf("all are alive, and it doubts %d: %v", v.Doubtful, v.Doubt)
	}
	w.burn("c2")
	w.expect(w.plan(), "", "it is not proven gone")
	if v := w.survey(); v.Unsafe != nil || v.Doubtful != 1 || v.Doubt == nil ||
		!strings.Contains(v.Doubt.Error(), "/proc/77/ns/net") {
		t.Errorf("%d: %v, %v", v.Doubtful, v.Doubt, v.Unsafe)
	}
	w.blind = false
	w.expect(w.collect(), "release 10.0.0.3", "all could be asked")
}

// A drained node with one lost DEL: no sandbox is alive, and the holds end.
func TestADrainedNodeIsLookedAfter(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "lost", container: "c1"})
	w.add(ask{pod: "db-0", container: "c2", window: time.Minute})
	w.burn("c1")
	w.stop("c2")
	w.after(2 * time.Minute)
	if v := w.survey(); v.Unsafe != nil || v.Doubtful != 1 || v.Doubt == nil ||
		!strings.Contains(v.Doubt.Error(), "not one looks alive") {
		t.Errorf("%d: %v, %v", v.Doubtful, v.Doubt, v.Unsafe)
	}
	w.expect(w.collect(), "expire 10.0.0.3", "one is over, and the other in doubt")
	w.add(ask{pod: "new", container: "c3"})
	w.expect(w.collect(), "release 10.0.0.2", "one lives: the other is gone")
}

// After a boot the boot id tells all, where it is certain that it is the node's.
func TestAfterABoot(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "a", container: "c1", window: time.Hour})
	w.add(ask{pod: "b", container: "c2", window: time.Minute})
	w.del("c2")
	w.reboot()
	w.after(time.Minute)
	if v := w.survey(); v.Unsafe == nil || len(maintain.Plan(v)) > 0 {
		t.Errorf("a boot id of who knows where: %v, %v", v.Unsafe, maintain.Plan(v))
	}
	w.first = true
	if reason := maintain.Plan(w.survey())[0].Reason; reason != "the node has booted since" {
		t.Error(reason)
	}
	w.expect(w.collect(), "release 10.0.0.2, expire 10.0.0.3", "two are due")
}

// Two networks of one pod may know its namespace by two paths. That one of them
// is gone is no proof while the namespace lives under the other.
func TestOneNamespaceUnderTwoPaths(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.unpack("c1")
	ino := w.netns["/run/netns/c1"]
	w.netns["/proc/77/ns/net"] = ino
	w.add(ask{pod: "db-0", container: "c1", window: time.Hour})
	w.add(ask{pod: "db-0", container: "c1", window: time.Hour, ifName: "net1", netns: "/proc/77/ns/net"})
	delete(w.netns, "/proc/77/ns/net")
	w.expect(w.collect(), "", "the process has ended, the mount is there")
	w.netns["/proc/78/ns/net"] = ino // another one lives in it
	w.burn("c1")
	w.add(ask{pod: "other", container: "c9"})
	w.expect(w.collect(), "", "the mount is gone, a process is there")
	delete(w.netns, "/proc/78/ns/net")
	w.expect(w.collect(), "release 10.0.0.2, release 10.0.0.3", "nothing is left of it")
}

// Act does not prove by less what the survey has proven by more: a namespace that is mounted at
// another path is alive, whether or not host-local's file of its lease is there.
func TestWhatIsMountedElsewhereKeepsItsLease(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "other", container: "c0"})
	w.add(ask{pod: "db-0", container: "c1", window: time.Hour})
	w.netns["/run/moved/c1"] = w.netns["/run/netns/c1"]
	w.burn("c1")
	file := filepath.Join(w.dataDir, w.network, "10.0.0.3")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	w.expect(w.collect(), "mirror 10.0.0.3", "its file is gone")
	w.expect(w.show(), "10.0.0.2 other Bound, 10.0.0.3 db-0 Bound", "both live on")
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

// A hold whose record is damaged would never be over: nobody needs that record.
func TestADamagedHoldIsMendedAndEnds(t *testing.T) {
	w := newWorld(t, "10.0.0.0/29")
	w.add(ask{pod: "living", container: "c0"})
	w.add(ask{pod: "db-0", container: "c1", window: time.Minute})
	w.stop("c1")
	w.settle()
	w.after(time.Hour)
	spoilRecord(t, filepath.Join(w.stateDir(), "leases.db"), "db-0")
	w.expect(w.collect(), "repair 10.0.0.3", "one is damaged")
	w.expect(w.show(), "10.0.0.2 living Bound", "all free but one")
}

// A record that cannot be repaired stops neither the collector nor an ADD of another pod.
func TestWhatCannotBeMendedStopsNothingElse(t *testing.T) {
	w := newWorld(t, "10.0.0.0/29 10.0.0.2-10.0.0.3")
	w.add(ask{pod: "living", container: "c0"})
	w.add(ask{pod: "over", container: "c1", window: time.Minute})
	w.stop("c1")
	w.network = "another"
	w.add(ask{pod: "db-0", container: "c2"})
	w.network = "cbr0"
	w.after(time.Hour)
	path := filepath.Join(w.stateDir(), "leases.db")
	spoilRecord(t, path, "db-0")
	// host-local is busy for long
	lock, err := store.LockFile(context.Background(), filepath.Join(w.dataDir, "another", "lock"))
	if err != nil {
		t.Fatal(err)
	}
	act := func() error {
		_, err := w.service.Act(context.Background(), maintain.Plan(w.survey()))
		return err
	}
	if err := act(); !errors.Is(err, store.ErrBusy) {
		t.Errorf("it is repaired: %v", err)
	}
	if l := w.leaseOf("over"); l.State != lease.None {
		t.Errorf("its time was over: %+v", l)
	}
	w.add(ask{pod: "new", container: "c3"})
	w.refused(ask{pod: "newer", container: "c4"}, ErrExhausted, "2 bound")
	spoilRecord(t, path, "new")
	w.refused(ask{pod: "newer", container: "c4"}, ErrExhausted, "2 bound")
	if err := errors.Join(lock.Close(), act()); err != nil {
		t.Error(err)
	}
}

// Where nothing can be read of the host, a full pool is full, whatever a damaged record may hide.
func TestAFullPoolWithARecordThatCannotBeMended(t *testing.T) {
	w := newWorld(t, "10.0.0.0/29 10.0.0.2-10.0.0.3")
	w.add(ask{pod: "living", container: "c0"})
	w.add(ask{pod: "db-0", container: "c1"})
	spoilRecord(t, filepath.Join(w.stateDir(), "leases.db"), "db-0")
	w.unlisted = true
	w.refused(ask{pod: "new", container: "c2"}, ErrExhausted, "1 bound")
	w.unlisted = false
	w.refused(ask{pod: "new", container: "c2"}, ErrExhausted, "2 bound")
}

// A container that asks again gets its address, though its record is damaged.
func TestARepeatedAddOfADamagedRecord(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{container: "c1"})
	spoilRecord(t, filepath.Join(w.stateDir(), "leases.db"), "c1")
	w.same("again", w.add(ask{container: "c1"}), "10.0.0.2")
}

// A DEL was spooled whose lease is damaged since: every call begins with the spool. What the pod
// had is held for it if the DEL could write host-local's file, and in any case the address is
// released.
func TestASpooledReleaseOfADamagedRecordStopsNothing(t *testing.T) {
	for want, del := range map[string]func(w *world) error{
		"10.0.0.2=db-0/Firm 10.0.0.3=new/Bound": func(w *world) error { w.del("c1"); return nil },
		"10.0.0.3=new/Bound": func(w *world) error {
			return w.service.Store.Spool("c1", "eth0", w.service.Clock())
		},
	} {
		w := newWorld(t, "10.0.0.0/24")
		w.add(ask{pod: "db-0", container: "c1", window: hour})
		if err := del(w); err != nil {
			t.Fatal(err)
		}
		spoilRecord(t, filepath.Join(w.stateDir(), "leases.db"), "db-0")
		w.same("somebody else", w.add(ask{pod: "new", container: "c2"}), "10.0.0.3")
		w.collect() // the record is repaired
		w.collect() // and the release replayed
		w.same("it was released", w.leases(), want)
	}
}

// Without an agent a full pool looks for it.
func TestAFullPoolMendsWhatIsDamaged(t *testing.T) {
	w := newWorld(t, "10.0.0.0/29 10.0.0.2-10.0.0.3")
	w.add(ask{pod: "living", container: "c0"})
	w.add(ask{pod: "db-0", container: "c1", window: time.Minute})
	w.stop("c1")
	w.after(time.Hour)
	spoilRecord(t, filepath.Join(w.stateDir(), "leases.db"), "db-0")
	w.same("its hold is over", w.add(ask{pod: "new", container: "c2"}), "10.0.0.3")
}

// Where the key of a record is damaged, too, its address is known to be taken, and no more. Mending
// must not forget that.
func TestMendingKeepsWhatIsMarkedAsTaken(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.4")
	for _, pod := range []string{"db-0", "db-1", "db-2"} {
		w.add(ask{pod: pod, container: pod, window: hour})
	}
	path := filepath.Join(w.stateDir(), "leases.db")
	dropRecord(t, path, "db-1")
	spoilRecord(t, path, "db-2")
	w.refused(ask{pod: "new", container: "c2"}, ErrExhausted, "3 bound")
	w.same("one is known", w.leases(), "10.0.0.2=db-0/Bound 10.0.0.3=/Bound 10.0.0.4=/Bound")
}

// The kernel gives the number of a namespace away again.
func TestANumberThatBelongsToAnotherNow(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: time.Hour})
	ino := w.leaseOf("db-0").Holder.Netns.Ino
	w.burn("c1")
	w.after(time.Second)
	w.netns["/run/netns/c2"] = ino
	w.add(ask{pod: "db-1", container: "c2", window: time.Hour})
	w.expect(w.collect(), "release 10.0.0.2", "it is db-1's number now")
}

func TestSpooledReleasesAreReplayed(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "a", container: "c1", window: time.Hour})
	w.add(ask{pod: "b", container: "c2", window: time.Hour})
	at := w.now
	w.after(time.Minute)
	for _, container := range []string{"c1", "unheard-of"} {
		if err := w.service.Store.Spool(container, "eth0", at); err != nil {
			t.Fatal(err)
		}
	}
	plan := maintain.Plan(w.survey())
	if len(plan) != 2 || plan[0].Do != maintain.Replay || !strings.Contains(plan[1].Reason, "nothing is bound") {
		t.Errorf("planned: %+v", plan)
	}
	w.collect()
	if l := w.leaseOf("a"); l.State != lease.Held || l.ReleasedAt.Boot != at.Boot {
		t.Errorf("%+v", l)
	}
	w.expect(w.plan(), "", "the spool is empty")
}

// Container ids come back: nerdctl and podman restart a container under its own. A record of an old
// DEL that is still in the spool, because it could not be removed, is not of the container's new
// life.
func TestAnOldReleaseIsNotReplayedIntoANewLife(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "a", container: "c1", uid: "u1"})
	at := w.now
	w.after(time.Second)
	w.stop("c1")
	w.settle()
	w.after(time.Second)
	w.add(ask{pod: "a", container: "c1", uid: "u1"})
	w.after(time.Second)
	w.add(ask{pod: "b", container: "c2"})
	for _, container := range []string{"c1", "c2"} {
		if err := w.service.Store.Spool(container, "eth0", at); err != nil {
			t.Fatal(err)
		}
	}
	if plan := maintain.Plan(w.survey()); len(plan) != 2 || !strings.Contains(plan[0].Reason, "nothing") {
		t.Errorf("planned: %+v", plan)
	}
	w.same("c", w.add(ask{pod: "c", container: "c3"}), "10.0.0.4")
	w.same("leases", w.leases(), "10.0.0.2=a/Bound 10.0.0.3=b/Bound 10.0.0.4=c/Bound")
	w.expect(w.plan(), "", "the spool is empty")
}

// A hold of the last boot, by a clock that was wrong then or is wrong now.
func TestAHoldFromTheFutureBeginsAgain(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "a", container: "c1", window: time.Hour})
	w.del("c1")
	w.reboot()
	w.first = true
	w.now.Wall = w.now.Wall.Add(-24 * time.Hour)
	w.expect(w.collect(), "rebase 10.0.0.2", "the clock is behind")
	w.expect(w.collect(), "", "once")
	w.after(time.Hour + time.Second)
	w.expect(w.collect(), "expire 10.0.0.2", "it has a window of this boot")
}

// Many at once: each once, in batches. The result names the actions in their order and the longest
// time that the lock was held.
func TestManyExpiredHolds(t *testing.T) {
	w := newWorld(t, "10.0.0.0/22")
	const n = 40
	w.add(ask{pod: "living", container: "living"})
	for i := range n {
		c := fmt.Sprintf("c%d", i)
		w.add(ask{pod: "p" + c, container: c, window: time.Minute})
		w.del(c)
		w.burn(c)
	}
	w.after(time.Hour)
	v := w.survey()
	var longest time.Duration
	w.service.Store.Timed = func(t store.Timing) { longest = max(longest, t.Held) }
	done, err := w.service.Act(t.Context(), maintain.Plan(v))
	if err != nil || !slices.Equal(done.Taken, upTo(n)) || done.Longest < longest {
		t.Errorf("%+v of %d, %v; the lock was held for up to %s", done, n, err, longest)
	}
	w.view(func(tx *store.Tx) {
		if tx.Len() != 1 || tx.Counter("leases/expired") != n {
			t.Errorf("%d leases are left, %d are counted", tx.Len(), tx.Counter("leases/expired"))
		}
	})
}

// upTo returns the numbers from 0 up to n, without n.
func upTo(n int) (out []int) {
	for i := range n {
		out = append(out, i)
	}
	return out
}

// If Act is cancelled or fails, its result has the actions that were committed before.
func TestActEndsEarly(t *testing.T) {
	for name, c := range map[string]struct {
		after func(w *world, cancel func()) // what happens after the first transaction
		want  error
	}{
		"cancelled": {func(_ *world, cancel func()) { cancel() }, context.Canceled},
		"the store fails": {func(w *world, _ func()) {
			path := filepath.Join(w.stateDir(), "leases.db")
			if err := errors.Join(os.Rename(path, path+".aside"), os.Mkdir(path, 0o700)); err != nil {
				t.Fatal(err)
			}
		}, store.ErrIO},
	} {
		w := newWorld(t, "10.0.0.0/22")
		const n = 100 // more than one transaction performs
		w.add(ask{pod: "living", container: "living"})
		for i := range n {
			c := fmt.Sprintf("c%d", i)
			w.add(ask{pod: "p" + c, container: c, window: time.Hour})
			w.burn(c)
		}
		plan := maintain.Plan(w.survey())
		ctx, cancel := context.WithCancel(t.Context())
		w.service.Store.Timed = func(store.Timing) {
			w.service.Store.Timed = nil
			c.after(w, cancel)
		}
		done, err := w.service.Act(ctx, plan)
		cancel()
		path := filepath.Join(w.stateDir(), "leases.db")
		if _, e := os.Stat(path + ".aside"); e == nil {
			if e := errors.Join(os.Remove(path), os.Rename(path+".aside", path)); e != nil {
				t.Fatal(e)
			}
		}
		released := strings.Count(w.leases(), "/Firm")
		if !errors.Is(err, c.want) || released == 0 || released == n || !slices.Equal(done.Taken, upTo(released)) ||
			done.Longest <= 0 {
			t.Errorf("%s: %d released, %+v, %v", name, released, done, err)
		}
	}
}

// A plan without actions needs no lock.
func TestActWithoutActions(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1"})
	calls := 0
	w.service.Store.Timed = func(store.Timing) { calls++ }
	if done, err := w.service.Act(t.Context(), nil); err != nil || calls > 0 || done.Taken != nil || done.Longest != 0 {
		t.Errorf("%d transactions, %+v, %v", calls, done, err)
	}
}

// The survey of a store that was never used has a time, and whether this process sees the host.
func TestSurveyOfAnUnusedStore(t *testing.T) {
	for _, seen := range []bool{true, false} {
		w := newWorld(t, "10.0.0.0/24")
		w.first = seen
		v := w.survey()
		if !v.Unused || v.Now != w.now || (v.Unproven == nil) != seen || v.Unsafe != nil || len(maintain.Plan(v)) > 0 {
			t.Errorf("the host is seen: %v: %+v", seen, v)
		}
	}
}

// The agent's reads fail if the store cannot be read, and otherwise return what there is.
func TestReadsOfTheAgent(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	type read struct {
		loss  string
		bound int
		last  uint64
		err   [3]error
	}
	all := func(ctx context.Context) (r read) {
		var leases []lease.Lease
		r.loss, r.err[0] = w.service.Loss(ctx)
		leases, r.err[1] = w.service.agent.Bound(ctx, on("c1", "eth0"))
		r.last, r.err[2] = w.service.Journal(ctx, 0, func(uint64, store.Entry) {})
		r.bound = len(leases)
		return r
	}
	if got := all(t.Context()); got.loss != "" || got.bound != 0 || got.err[0] != nil || got.err[1] != nil {
		t.Errorf("never used: %+v", got)
	}
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.add(ask{pod: "db-1", container: "c2", window: hour})
	if got := all(t.Context()); got != (read{bound: 1, last: 2}) {
		t.Errorf("of two leases: %+v", got)
	}
	lock, err := store.LockFile(t.Context(), filepath.Join(w.service.Store.Dirs().Run, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	for i, err := range all(ctx).err {
		if !errors.Is(err, store.ErrBusy) {
			t.Errorf("read %d of a busy store: %v", i, err)
		}
	}
	cancel()
	lock.Close()
	if err := os.Truncate(filepath.Join(w.stateDir(), "leases.db"), 100); err != nil {
		t.Fatal(err)
	}
	for _, when := range []string{"lost", "replaced"} {
		if why, err := w.service.Loss(t.Context()); err != nil || !strings.Contains(why, "it has 100 bytes") {
			t.Errorf("%s: %q, %v", when, why, err)
		}
		read := func(*store.Tx) error { return nil }
		if err := w.service.Store.Update(t.Context(), store.Options{}, read); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.service.AcceptLoss(t.Context()); err != nil {
		t.Fatal(err)
	}
	if why, err := w.service.Loss(t.Context()); err != nil || why != "" {
		t.Errorf("accepted: %q, %v", why, err)
	}
}
