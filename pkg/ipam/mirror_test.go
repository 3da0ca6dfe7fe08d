package ipam

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/adopt"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// files prints host-local's directory: "10.0.0.2=c1", a hold by its mark.
func (w *world) files() string {
	w.t.Helper()
	entries, err := os.ReadDir(filepath.Join(w.dataDir, w.network))
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		if e.Name() == "lock" || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		id, _, _ := strings.Cut(w.file(e.Name()), "\r\n")
		if words := strings.Fields(id); len(words) > 3 {
			id = words[0] + ":" + words[1] + ":" + words[3]
		}
		out = append(out, e.Name()+"="+id)
	}
	return strings.Join(out, " ")
}

func (w *world) path(name string) string { return filepath.Join(w.dataDir, w.network, name) }

func (w *world) file(name string) string {
	b, err := os.ReadFile(w.path(name))
	if err != nil {
		return ""
	}
	return string(b)
}

// hostLocal does what host-local does with its files.
func (w *world) hostLocal(addr, container string) {
	w.t.Helper()
	if err := os.MkdirAll(filepath.Join(w.dataDir, w.network), 0o755); err != nil {
		w.t.Fatal(err)
	}
	f, err := os.OpenFile(w.path(addr), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(container + "\r\neth0"); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) wipe(paths ...string) {
	w.t.Helper()
	for _, p := range paths {
		if err := os.RemoveAll(p); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) stateDir() string { return w.service.Store.Dirs().State }

func TestHostLocalsFilesFollowTheLeases(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24", "fd00::/64")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.add(ask{container: "plain"})
	w.same("bound", w.files(), "10.0.0.2=c1 10.0.0.3=plain fd00::2=c1 fd00::3=plain")
	w.same("host-local's own format", w.file("10.0.0.2"), "c1\r\neth0")
	w.del("plain")
	w.stop("c1")
	w.same("held, and free", w.files(), "10.0.0.2=#held:db/db-0:firm fd00::2=#held:db/db-0:firm")
	w.add(ask{pod: "db-0", container: "c2", window: hour})
	w.same("claimed", w.files(), "10.0.0.2=c2 fd00::2=c2")
	w.burn("c2")
	w.add(ask{pod: "db-0", container: "c3", window: hour})
	w.same("taken over", w.files(), "10.0.0.2=c3 fd00::2=c3")
	w.stop("c3")
	w.after(hour)
	w.setRanges("10.0.0.0/24")
	w.add(ask{container: "x"})
	w.same("over", w.files(), "10.0.0.4=x")
}

// How old a file is tells whose it is, so it is written when the address changes hands and at no
// other time.
func TestAFileIsWrittenOnlyWhenTheAddressChangesHands(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", silent: true})
	old := time.Unix(1_600_000_000, 0)
	if err := os.Chtimes(w.path("10.0.0.2"), old, old); err != nil {
		t.Fatal(err)
	}
	w.follow("uid-of-c1", hour)
	w.same("asked again", w.add(ask{pod: "db-0", container: "c1", silent: true}), "10.0.0.2")
	if info, err := os.Stat(w.path("10.0.0.2")); err != nil || !info.ModTime().Equal(old) {
		t.Errorf("%v, %v", info.ModTime(), err)
	}
}

func TestAnAddressThatHostLocalGaveIsInUse(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.4")
	w.add(ask{pod: "a", container: "c1"})
	w.hostLocal("10.0.0.3", "theirs")
	w.same("passed over", w.add(ask{pod: "b", container: "c2"}), "10.0.0.4")
	w.refused(ask{pod: "c", container: "c3"}, ErrExhausted, "3 bound")
	w.refused(ask{pod: "c", container: "c3", requested: "10.0.0.3"}, ErrUnavailable, "container theirs")
	w.del("theirs") // host-local's container, and its DEL comes to us
	w.same("free", w.add(ask{pod: "c", container: "c3"}), "10.0.0.3")
}

func TestHostLocalHearsADelOfOurs(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{container: "plain", netns: "/dummy"}) // no namespace: of its life nothing is ever known
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.wipe(w.path("10.0.0.2"), w.path("10.0.0.3"))
	w.same("the first is believed to be gone", w.add(ask{container: "c2"}), "10.0.0.2")
	w.same("the second lives: its file is made again", w.files(), "10.0.0.2=c2 10.0.0.3=c1")
	w.wipe(w.path("10.0.0.3"))
	w.burn("c1")
	w.same("now it is a release", w.add(ask{pod: "db-0", container: "c3", window: hour}), "10.0.0.3")
}

// A missing file says that host-local has served a DEL, and nothing of whose. What cannot be proven
// dead keeps its address.
func TestAMissingFileReleasesNobodyWhoMayBeAlive(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.2")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.wipe(w.path("10.0.0.2"))
	w.burn("c1")
	w.blind = true // a process may live in its namespace
	w.refused(ask{container: "c2"}, ErrExhausted, "1 bound")
	w.same("its file is made again", w.files(), "10.0.0.2=c1")
}

// A call may change a lease more than once: its file says what came of it, and nothing where
// nothing did.
func TestALeaseThatEndsInTheSameCallLeavesNoFile(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.burn("c1")
	// host-local processed its DEL: a hold begins, which the pod's request for another address ends
	w.wipe(w.path("10.0.0.2"))
	w.add(ask{pod: "db-0", container: "c2", window: hour, requested: "10.0.0.9"})
	w.same("leases", w.leases(), "10.0.0.9=db-0/Bound")
	w.same("files", w.files(), "10.0.0.9=c2")
}

func TestHostLocalHearsADelAndGivesTheAddressAway(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{container: "first", netns: "/dummy"})
	w.add(ask{container: "ours", netns: "/dummy"})
	w.wipe(w.path("10.0.0.2"), w.path("10.0.0.3"))
	w.hostLocal("10.0.0.2", "theirs")
	w.hostLocal("10.0.0.3", "others")
	w.del("theirs")
	w.same("host-local processed their DEL", w.leases(), "10.0.0.3=/Bound")
	w.same("free", w.add(ask{container: "next", netns: "/dummy"}), "10.0.0.2")
	w.refused(ask{container: "last", netns: "/dummy"}, ErrExhausted)
	w.del("others")
	w.same("free as well", w.add(ask{container: "last", netns: "/dummy"}), "10.0.0.3")
}

func TestHostLocalGaveAHeldAddressAway(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.stop("c1")
	w.wipe(w.path("10.0.0.2"))
	w.hostLocal("10.0.0.2", "theirs")
	w.same("the pod gets another", w.add(ask{pod: "db-0", container: "c2", window: hour}), "10.0.0.3")
	w.same("and theirs is bound", w.leases(), "10.0.0.2=/Bound 10.0.0.3=db-0/Bound")
}

// Addresses of unknown owner are not handed out in this boot and forgotten at
// the next.
func TestWhatNobodyKnowsIsForgottenAtTheNextBoot(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.hostLocal("10.0.0.2", "years-ago")
	w.same("at first", w.add(ask{pod: "x", container: "c1"}), "10.0.0.3")
	w.refused(ask{pod: "y", container: "c2"}, ErrExhausted)
	w.reboot()
	w.same("then", w.add(ask{pod: "y", container: "c2"}), "10.0.0.2")
}

func TestALostStoreWithoutEvidence(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.wipe(w.stateDir(), w.dataDir)
	w.refused(ask{pod: "x", container: "c2"}, transact.ErrNoEvidence, "leasectl recover --accept-loss", "cbr0")
	w.del("c1") // succeeds, and waits
	if why, err := w.service.Loss(context.Background()); err != nil || why == "" {
		t.Errorf("lost because %q, %v", why, err)
	}
	if err := w.service.AcceptLoss(context.Background()); err != nil {
		t.Fatal(err)
	}
	w.same("accepted", w.add(ask{pod: "x", container: "c2"}), "10.0.0.2")
}

func TestADelOrACheckMayComeFirst(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.hostLocal("10.0.0.2", "theirs")
	w.hostLocal("10.0.0.3", "others")
	if err := w.service.Verify(context.Background(), w.request(ask{container: "theirs"})); err != nil {
		t.Error(err)
	}
	w.del("theirs")
	w.same("leases", w.leases(), "10.0.0.3=/Bound")
	w.same("files", w.files(), "10.0.0.3=others")
}

func TestADamagedHeadPageIsReconciledWithTheFiles(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.add(ask{container: "c2"})
	spoilNewestHead(t, filepath.Join(w.stateDir(), "leases.db")) // the ADD of c2 is gone
	w.same("not twice", w.add(ask{pod: "x", container: "c3"}), "10.0.0.4")
	w.same("leases", w.leases(), "10.0.0.2=db-0/Bound 10.0.0.3=/Bound 10.0.0.4=x/Bound")
}

// spoilNewestHead damages the head page with the higher transaction number.
func spoilNewestHead(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const page, txAt = 4096, 16 + 48
	at := 0
	if string(b[page+txAt:page+txAt+1]) > string(b[txAt:txAt+1]) { // few transactions: one byte tells
		at = page
	}
	b[at+20] ^= 0xff
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestGCHearsOfHostLocalsContainers(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{container: "ours"})
	w.hostLocal("10.0.0.7", "theirs")
	w.hostLocal("10.0.0.8", "stale")
	valid := []lease.Attachment{on("ours", "eth0"), on("theirs", "eth0")}
	err := w.service.Collect(context.Background(), w.where().Pool, valid)
	if err != nil {
		t.Fatal(err)
	}
	w.same("files", w.files(), "10.0.0.2=ours 10.0.0.7=theirs")
}

func TestImportAndExportByHand(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.hostLocal("10.0.0.7", "theirs")
	found, _, err := w.service.Preview(context.Background(), w.where().Pool, w.sets)
	if err != nil || len(found) != 1 || found[0].Lease.Holder.ContainerID != "theirs" || found[0].Why == "" {
		t.Fatalf("%+v %v", found, err)
	}
	w.first = true
	before, after, err := w.service.Import(context.Background(), w.where().Pool, w.sets)
	if err != nil || before != 0 || after != 1 {
		t.Errorf("%d, then %d, %v", before, after, err)
	}
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.first = false
	_, problems, err := w.service.Preview(context.Background(), w.where().Pool, w.sets)
	if err != nil || len(problems) > 0 {
		t.Errorf("problems: %q, %v", problems, err)
	}
	w.wipe(w.dataDir)
	pools, err := w.service.Export(context.Background(), func(lease.Pool) bool { return true })
	if err != nil || len(pools) != 1 {
		t.Errorf("%v %v", pools, err)
	}
	w.same("files", w.files(), "10.0.0.2=c1 10.0.0.7=theirs")
}

// If host-local has processed a DEL and removed the file, export does not write it again for a
// container that is gone, or about whose namespace nothing is known. Nobody would remove that file.
func TestExportAfterHostLocalsDEL(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.hostLocal("10.0.0.7", "adopted")
	w.first = true
	w.add(ask{container: "gone"})
	w.add(ask{container: "alive"})
	w.same("files", w.files(), "10.0.0.2=gone 10.0.0.3=alive 10.0.0.7=adopted")
	w.burn("gone")
	w.wipe(w.path("10.0.0.2"), w.path("10.0.0.3"), w.path("10.0.0.7"))
	w.export()
	w.same("files", w.files(), "10.0.0.3=alive")
}

func (w *world) export() {
	w.t.Helper()
	if _, err := w.service.Export(context.Background(), anyPool); err != nil {
		w.t.Fatal(err)
	}
}

// Preview works without a store and with a lost one, too. It reports if Import would fail.
func TestPreview(t *testing.T) {
	for name, c := range map[string]struct {
		prepare  func(w *world)
		unproven bool
	}{
		"no store, on the node":        {func(w *world) { w.first = true }, false},
		"no store, in a container":     {func(*world) {}, true},
		"a store, on the node":         {func(w *world) { w.add(ask{container: "c1"}) }, false},
		"a store, in a container":      {func(w *world) { w.add(ask{container: "c1"}); w.elsewhere() }, true},
		"a lost store, on the node":    {func(w *world) { w.lose(); w.first = true }, false},
		"a lost store, in a container": {func(w *world) { w.lose() }, true},
	} {
		w := newWorld(t, "10.0.0.0/24")
		c.prepare(w)
		w.hostLocal("10.0.0.7", "theirs")
		found, problems, err := w.service.Preview(t.Context(), w.where().Pool, w.sets)
		if err != nil || !slices.ContainsFunc(found, func(f adopt.Finding) bool {
			return f.Lease.Address.String() == "10.0.0.7" && f.Lease.Holder.ContainerID == "theirs"
		}) {
			t.Errorf("%s: %+v, %v", name, found, err)
		}
		if len(problems) > 0 != c.unproven ||
			c.unproven && !strings.HasPrefix(problems[0], "nothing of this would be adopted from here: ") {
			t.Errorf("%s: problems %q", name, problems)
		}
		if err := w.service.AcceptLoss(t.Context()); err != nil { // so that the store can be checked
			t.Error(err)
		}
	}
}

func TestPreviewOfABusyStore(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	lock, err := store.LockFile(t.Context(), filepath.Join(w.service.Store.Dirs().Run, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if found, _, err := w.service.Preview(ctx, w.where().Pool, w.sets); !errors.Is(err, store.ErrBusy) {
		t.Errorf("%+v, %v", found, err)
	}
}

// A file that cannot be written or removed is reported. If one could not be written, the directory
// no longer proves that it has the files of all leases.
func TestAFileThatCannotBeWritten(t *testing.T) {
	const proves, provesNot = "0 ", "not all "
	pod := ask{pod: "db-0", container: "c1", window: hour}
	for name, c := range map[string]struct {
		before, call func(w *world)
		warnings     int
		mark         string
	}{
		"when a hold begins": {func(*world) {}, func(w *world) { w.stop("c1") }, 1, provesNot},
		"when it is claimed": {func(w *world) { w.stop("c1"); w.settle() },
			func(w *world) { w.add(ask{pod: "db-0", container: "c2", window: hour}) }, 1, provesNot},
		"when a sandbox is replaced": {func(w *world) { w.burn("c1") },
			func(w *world) { w.add(ask{pod: "db-0", container: "c2", window: hour}) }, 2, provesNot},
		"when another lease changes": {func(*world) {}, func(w *world) { w.add(ask{container: "x"}); w.stop("x") }, 0,
			proves},
		"when a hold ends": {func(w *world) { w.stop("c1"); w.add(ask{pod: "x", container: "x"}) },
			func(w *world) {
				if err := w.revokePods(t.Context(), w.leaseOf("db-0")); err != nil {
					t.Fatal(err)
				}
			}, 1, proves},
	} {
		w := newWorld(t, "10.0.0.0/24")
		w.add(pod)
		c.before(w)
		w.warned = nil
		restore := readOnly(t, w.path("10.0.0.2"))
		c.call(w)
		restore()
		others := slices.DeleteFunc(slices.Clone(w.warned), func(s string) bool {
			return strings.HasPrefix(s, "a file for host-local cannot be kept: ") && strings.Contains(s, "10.0.0.2")
		})
		if len(w.warned) != c.warnings || len(others) > 0 {
			t.Errorf("%s: warned %q, want %d warnings about the file", name, w.warned, c.warnings)
		}
		if mark := w.file(".leasehold"); !strings.HasPrefix(mark, c.mark) {
			t.Errorf("%s: the mark is %q, want %q", name, mark, c.mark)
		}
	}
}

// Nothing is written in the place of a file that cannot be read.
func TestAFileThatCannotBeReadIsNotWritten(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.unreadable("10.0.0.2")
	w.warned = nil
	w.stop("c1")
	if len(w.warned) != 1 || !strings.Contains(w.warned[0], "host-local's file of 10.0.0.2 cannot be read") {
		t.Errorf("warned %q", w.warned)
	}
	w.stillUnreadable("10.0.0.2")
}

// readOnly lets a file be neither written nor removed, until restore is called.
func readOnly(t *testing.T, path string) (restore func()) {
	t.Helper()
	if err := errors.Join(unix.Mount(path, path, "", unix.MS_BIND, ""),
		unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")); err != nil {
		t.Fatal(err)
	}
	restore = sync.OnceFunc(func() {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	return restore
}

// lose makes a store of one lease and destroys it.
func (w *world) lose() {
	w.t.Helper()
	w.add(ask{container: "c1"})
	if err := os.Truncate(filepath.Join(w.stateDir(), "leases.db"), 100); err != nil {
		w.t.Fatal(err)
	}
}

// A DEL of a network that host-local has never had makes it no directory.
func TestADelMakesNoDirectory(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	in := w.where()
	in.Options = &w.options
	if err := w.service.Release(context.Background(), on("c1", "eth0"), in); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(w.dataDir); !os.IsNotExist(err) {
		t.Errorf("there is a directory: %v", err)
	}
}

// The files are never synced: a power cut brings old ones back, or none.
func TestOldFilesOfOursAreNoEvidence(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	old, t0 := w.file("10.0.0.2"), w.now.Wall
	w.after(time.Second)
	w.stop("c1")
	w.add(ask{pod: "db-0", container: "c2", window: hour})
	w.add(ask{container: "plain"})
	w.del("plain")
	for addr, content := range map[string]string{"10.0.0.2": old, "10.0.0.3": "plain\r\neth0"} {
		if err := os.WriteFile(w.path(addr), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(w.path(addr), t0, t0); err != nil {
			t.Fatal(err)
		}
	}
	w.reboot()
	w.same("the pod comes back", w.add(ask{pod: "db-0", container: "c3", window: hour}), "10.0.0.2")
	w.same("and nothing leaks", w.add(ask{container: "x"}), "10.0.0.3")
}

// Container ids are used again, by runtimes and by restarted containers: the age of a file says
// whose it is.
func TestANewFileOfAContainerThatWasOursIsHostLocals(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{container: "c1", netns: "/dummy"})
	w.del("c1")
	w.hostLocal("10.0.0.2", "c1")
	w.same("passed over", w.add(ask{pod: "x", container: "c2"}), "10.0.0.3")
	w.refused(ask{pod: "y", container: "c3"}, ErrExhausted, "2 bound")
}

func TestADamagedRecordIsMendedFromWhatTheHostShows(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.add(ask{pod: "db-1", container: "c2", window: hour})
	w.stop("c1")
	spoilRecord(t, filepath.Join(w.stateDir(), "leases.db"), "db-0")
	w.same("its file knows", w.add(ask{pod: "db-0", container: "third", window: hour}), "10.0.0.2")
	spoilRecord(t, filepath.Join(w.stateDir(), "leases.db"), "third")
	w.wipe(w.path("10.0.0.2"))
	w.add(ask{pod: "x", container: "c4", requested: "10.0.0.9"})
	w.refused(ask{pod: "y", container: "c5", requested: "10.0.0.2"}, ErrUnavailable)
	w.same("nobody knows", w.leases(), "10.0.0.2=/Bound 10.0.0.3=db-1/Bound 10.0.0.9=x/Bound")
}

// What is learnt again of a soft hold lasts as long as the configuration of the call says, at most.
func TestAMendedCoolDownLastsAsConfigured(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.options.SoftHold = hour
	w.add(ask{pod: "db-0", container: "c1", uid: "u1"})
	w.stop("c1")
	spoilRecord(t, filepath.Join(w.stateDir(), "leases.db"), "db-0")
	w.add(ask{pod: "db-0", container: "c2", uid: "another", requested: "10.0.0.9"})
	w.after(50 * time.Minute)
	w.same("back", w.add(ask{pod: "db-0", container: "c3", uid: "u1"}), "10.0.0.2")
}

// spoilRecord damages the records that name the word.
func spoilRecord(t *testing.T, path, word string) {
	t.Helper()
	inRecords(t, path, word, func(b *bolt.Bucket, k, v []byte) error { return b.Put(k, append(v, 'x')) })
}

// dropRecord removes them, and leaves the indexes as they are.
func dropRecord(t *testing.T, path, word string) {
	t.Helper()
	inRecords(t, path, word, func(b *bolt.Bucket, k, _ []byte) error { return b.Delete(k) })
}

func inRecords(t *testing.T, path, word string, fn func(b *bolt.Bucket, k, v []byte) error) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bolt.Tx) error {
		b, found := tx.Bucket([]byte("leases")), map[string][]byte{}
		err := b.ForEach(func(k, v []byte) error {
			if bytes.Contains(v, []byte(word)) {
				found[string(k)] = bytes.Clone(v)
			}
			return nil
		})
		for k, v := range found {
			err = errors.Join(err, fn(b, []byte(k), v))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// The first ADD was killed before it wrote its file, host-local served the next pod meanwhile, and
// the killed ADD is tried again.
func TestARetriedAddDoesNotGetWhatHostLocalGaveMeanwhile(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.4")
	w.add(ask{pod: "a", container: "c1", window: hour})
	w.wipe(w.path("10.0.0.2"))
	w.hostLocal("10.0.0.2", "theirs")
	w.same("another one", w.add(ask{pod: "a", container: "c1", window: hour}), "10.0.0.3")
	w.same("leases", w.leases(), "10.0.0.2=/Bound 10.0.0.3=a/Bound")
	w.same("files", w.files(), "10.0.0.2=theirs 10.0.0.3=c1")
}

// The same, and the directory is brought in step by another pod's ADD before.
func TestAFileOfHostLocalsIsNotOverwrittenWhereItsContainerHasTheAddress(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.4")
	w.add(ask{pod: "a", container: "c1", window: hour})
	w.wipe(w.dataDir)
	w.hostLocal("10.0.0.2", "theirs")
	w.unpack("theirs")
	w.addrs["/run/netns/theirs"] = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	w.same("another pod", w.add(ask{pod: "b", container: "c2"}), "10.0.0.3")
	w.same("files", w.files(), "10.0.0.2=theirs 10.0.0.3=c2")
	w.same("the first one", w.add(ask{pod: "a", container: "c1", window: hour}), "10.0.0.4")
}

// An address whose owner nothing names is free once the namespace that has it is gone.
func TestTheFileOfAnUnknownOwnerNamesNobody(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.2")
	w.unpack("theirs")
	w.addrs["/run/netns/theirs"] = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	w.refused(ask{pod: "a", container: "c1"}, ErrExhausted)
	w.reboot()
	w.same("after a boot", w.add(ask{pod: "a", container: "c2"}), "10.0.0.2")
}

// An empty file is what a power cut leaves of one that was not synced.
func TestAnAddressOfAnUnknownOwnerIsFreeOnceItsFileIsGone(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.2")
	w.hostLocal("10.0.0.2", "theirs")
	if err := os.Truncate(w.path("10.0.0.2"), 0); err != nil {
		t.Fatal(err)
	}
	w.refused(ask{pod: "a", container: "c1"}, ErrExhausted)
	w.wipe(w.path("10.0.0.2"))
	w.after(lookEvery)
	w.same("free", w.add(ask{pod: "a", container: "c1"}), "10.0.0.2")
}

func TestAWipedDirectoryTakesNoNameFromALeaseWhoseNamespaceLivesUnmounted(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.2")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.addrs["/proc/77/ns/net"] = []netip.Addr{netip.MustParseAddr("10.0.0.2")}
	w.netns["/proc/77/ns/net"] = w.netns["/run/netns/c1"]
	w.inPID[w.netns["/run/netns/c1"]] = true
	w.burn("c1")
	w.wipe(w.dataDir)
	w.refused(ask{pod: "x", container: "c2"}, ErrExhausted)
	w.same("leases", w.leases(), "10.0.0.2=db-0/Bound")
	w.del("c1")
	w.same("its window", w.leases(), "10.0.0.2=db-0/Firm")
}

// A call was killed before it wrote its file, and the directory is not in step: what the file said
// before is no evidence against the store.
func TestAnOldFileReplacesNoLeaseWhereTheDirectoryIsBroughtInStep(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.3")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	old, t0 := w.file("10.0.0.2"), w.now.Wall
	w.reboot()
	w.add(ask{pod: "db-0", container: "c2", window: hour})
	if err := os.WriteFile(w.path("10.0.0.2"), []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(w.path("10.0.0.2"), t0, t0); err != nil {
		t.Fatal(err)
	}
	w.wipe(w.path(".leasehold"))
	w.burn("c2")
	w.add(ask{pod: "x", container: "c3"})
	w.same("leases", w.leases(), "10.0.0.2=db-0/Bound 10.0.0.3=x/Bound")
	w.same("files", w.files(), "10.0.0.2=c2 10.0.0.3=c3")
}

// rm * leaves the mark behind, and a call that fails makes host-local's lock file again.
func TestACallThatFailsLeavesADirectoryToBeBroughtInStep(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.add(ask{pod: "db-1", container: "c2", window: hour})
	w.wipe(w.path("10.0.0.2"), w.path("10.0.0.3"), w.path("lock"))
	w.refused(ask{pod: "x", container: "c3", netns: "/run/netns/gone"}, ErrNetns)
	w.add(ask{pod: "x", container: "c4", window: hour, requested: "10.0.0.9"})
	w.same("files", w.files(), "10.0.0.2=c1 10.0.0.3=c2 10.0.0.9=c4")
}

// An ADD was killed before it wrote its file, and host-local gave the address away meanwhile. The
// next call writes the files that are missing, and no others.
func TestTheFilesThatACallLeftOutReplaceNoneOfHostLocals(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24 10.0.0.2-10.0.0.4")
	w.add(ask{pod: "a", container: "c1"})
	mark := w.file(".leasehold")
	w.add(ask{pod: "b", container: "c2"})
	if err := os.WriteFile(w.path(".leasehold"), []byte(mark), 0o600); err != nil {
		t.Fatal(err)
	}
	w.wipe(w.path("10.0.0.3"))
	w.hostLocal("10.0.0.3", "theirs")
	w.add(ask{pod: "a", container: "c1"})
	w.same("files", w.files(), "10.0.0.2=c1 10.0.0.3=theirs")
	w.same("the retry", w.add(ask{pod: "b", container: "c2"}), "10.0.0.4")
}

// killedAfterCommit ends a call when it has committed: its last files are not written.
func (w *world) killedAfterCommit(call func()) {
	w.service.Store.Committed = func() { panic("killed") }
	defer func() {
		w.service.Store.Committed = nil
		if r := recover(); r != "killed" {
			panic(r)
		}
	}()
	call()
}

// TestNoFileNamesTheFormerHolder verifies that the file of an address names its former container no
// more when the store has given the address to another or holds it, wherever the call is killed: a
// DEL of that container, served by host-local, would remove the file.
func TestNoFileNamesTheFormerHolder(t *testing.T) {
	tests := map[string]struct {
		call          func(*world)
		leases, files string
	}{
		"a hold": {
			func(w *world) {
				w.service.releaseFound(w.t.Context(), on("c1", "eth0"), w.where())
			},
			"10.0.0.2=db-0/Firm", "10.0.0.2=#held:db/db-0:firm",
		},
		"a take-over": {
			func(w *world) {
				w.burn("c1")
				w.unpack("c2")
				w.service.Assign(w.t.Context(), w.request(ask{pod: "db-0", container: "c2", window: time.Hour}))
			},
			"10.0.0.2=db-0/Bound", "10.0.0.2=#held:db/db-0:soft",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "10.0.0.0/29")
			w.add(ask{pod: "db-0", container: "c1", window: time.Hour})
			w.killedAfterCommit(func() { tt.call(w) })
			w.same("the leases", w.leases(), tt.leases)
			w.same("the files", w.files(), tt.files)
		})
	}
}

// An ADD that is repeated after a DEL makes the file of a hold that of a container again.
func TestTheFileOfAHoldThatItsOwnContainerTakes(t *testing.T) {
	w := newWorld(t, "10.0.0.0/24")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.del("c1")
	w.same("held", w.files(), "10.0.0.2=#held:db/db-0:firm")
	w.add(ask{pod: "db-0", container: "c1", window: hour})
	w.same("bound", w.files(), "10.0.0.2=c1")
}
