package rundir

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestMark verifies that the mark names the pools of this boot, and that of another boot none.
func TestMark(t *testing.T) {
	boot := "b1"
	d := Dir{t.TempDir(), func() string { return boot }}
	a, b := lease.Pool{DataDir: "/a", Network: "n"}, lease.Pool{DataDir: "/b", Network: "n"}
	use := func(p lease.Pool) {
		t.Helper()
		must.Succeed(t, d.SetUsed(p))
	}
	want := func(what string, used ...bool) {
		t.Helper()
		check.Slices(t, []bool{d.Used(a), d.Used(b)}, used, what)
	}
	want("no mark", false, false)
	use(a)
	use(a)
	want("one pool", true, false)
	use(b)
	want("two pools", true, true)
	boot = ""
	want("the boot is not known", true, true)
	boot = "b2"
	want("another boot", false, false)
	use(b)
	want("one pool in another boot", false, true)
	boot = "b1"
	want("the first boot", false, false)
	must.Succeed(t, errors.Join(os.Remove(d.mark()), os.Mkdir(d.mark(), 0o700)))
	want("it cannot be read", true, true)
	if err := d.SetUsed(a); err == nil {
		t.Error("what cannot be read was written")
	}
}

// TestLongNames verifies that the queues take attachments whose names are too long for a file's,
// and that what is not written whole is no entry.
func TestLongNames(t *testing.T) {
	d, p := Dir{Path: t.TempDir()}, lease.Pool{DataDir: "/a", Network: "n"}
	at := lease.Instant{Wall: time.Unix(1_700_000_000, 0).UTC(), Boot: time.Hour, BootID: "b1"}
	var long []lease.Attachment
	for _, n := range []int{1, maxName - 5, maxName - 4, 255, 4096} {
		long = append(long, lease.Attachment{ContainerID: strings.Repeat("c", n), IfName: "eth0"})
	}
	for i, who := range long {
		at.Boot += time.Second
		must.Succeed(t, errors.Join(d.AddDEL(who, p, at), d.Announce(who), d.Announce(who)))
		records, err := d.QueuedDELs("b1")
		if err != nil || len(records) != i+1 || records[i].Attachment != who || records[i].Pool() != p ||
			records[i].At != at {
			t.Fatalf("%d characters: %+v, %v", len(who.ContainerID), records, err)
		}
	}
	names, err := os.ReadDir(d.Announcements())
	if err != nil || len(names) != len(long) {
		t.Fatalf("%v, %v", names, err)
	}
	for _, f := range names {
		path := filepath.Join(d.Announcements(), f.Name())
		who, ok := AttachmentOf(f.Name(), path)
		if !ok || !slices.Contains(long, who) {
			t.Errorf("%s is of %.20s, %v", f.Name(), who.ContainerID, ok)
		}
		content := must.Read(t, path)
		check.Equal(t, len(content) > 0, strings.HasPrefix(f.Name(), "#"), f.Name(), string(content))
		if len(content) > 0 {
			for _, cut := range []int64{0, 10, int64(len(content)) - 1} {
				must.Succeed(t, os.Truncate(path, cut))
				if who, ok := AttachmentOf(f.Name(), path); ok {
					t.Errorf("cut to %d bytes: %.20s", cut, who.ContainerID)
				}
			}
		}
		d.Unannounce(who)
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s was not removed", path)
		}
	}
	records, _ := d.QueuedDELs("b2")
	if len(records) != len(long) || !records[0].Stale || records[0].At.BootID != "b1" {
		t.Errorf("in another boot: %+v", records)
	}
	if records, _ := d.QueuedDELs(""); len(records) != len(long) || records[0].Stale {
		t.Errorf("in an unknown boot: %+v", records)
	}
	must.Succeed(t, d.RemoveDELs(records))
	records, _ = d.QueuedDELs("")
	check.Empty(t, records, "removed")
}

// TestQueueIgnoresDirectories verifies that a directory with the name of a DEL is no DEL: it
// could not be removed after it was applied.
func TestQueueIgnoresDirectories(t *testing.T) {
	d := Dir{Path: t.TempDir()}
	must.Succeed(t, os.MkdirAll(filepath.Join(d.Queue(), "b1.1.1.c1@eth0", "full"), 0o700))
	if list, err := d.QueuedDELs("b1"); err != nil || len(list) != 0 {
		t.Errorf("%v, %v", list, err)
	}
}

// FuzzQueuedDEL verifies that a file name in the queue is either ignored, or read as what a DEL
// with these values writes, and that RemoveDELs removes that file only.
func FuzzQueuedDEL(f *testing.F) {
	for _, name := range []string{"b1.00000003600000000000.1700000000000000000.c1@eth0", "b1.1.2.c@e", "-.-1.-2.c@e",
		"b1.1.2.c@e.new", "b1.x.2.c@e", "b1.1..c@e", "b1.1.2.", "b1.99999999999999999999.1.c@e", "b1.+1.02.c@e",
		"b2.1.2.c@e", "1.2.c@e", "b1.1.2.#00"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		d := Dir{Path: t.TempDir()}
		must.Succeed(t, os.MkdirAll(d.Queue(), 0o700))
		other := filepath.Join(d.Queue(), "other")
		if filepath.Base(name) != name || name == "." || name == ".." || name == "other" ||
			os.WriteFile(filepath.Join(d.Queue(), name), nil, 0o600) != nil {
			return // no file name
		}
		must.Succeed(t, os.WriteFile(other, nil, 0o600))
		records, err := d.QueuedDELs("b1")
		if err != nil || len(records) > 1 {
			t.Fatalf("%q: %+v, %v", name, records, err)
		}
		for _, r := range records {
			if again, ok := lease.ParseAttachment(r.Name()); !ok || again != r.Attachment ||
				r.Stale == (r.At.BootID == "b1") {
				t.Errorf("%q is read as %+v", name, r)
			}
			must.Succeed(t, errors.Join(d.RemoveDELs(records), d.AddDEL(r.Attachment, lease.Pool{}, r.At)))
			again, err := d.QueuedDELs("b1")
			if err != nil || len(again) != 1 || again[0].ContainerID != r.ContainerID ||
				again[0].At != r.At && bootName(r.At.BootID) == r.At.BootID {
				t.Errorf("%q is written as %+v, %v", name, again, err)
			}
		}
		_, err = os.Stat(other)
		must.Succeed(t, err)
	})
}

func TestCallLog(t *testing.T) {
	d := Dir{Path: t.TempDir()}
	add := Call{Verb: "ADD", Result: "ok", Took: 2 * time.Millisecond, Waited: time.Microsecond}
	del := Call{Verb: "DEL", Result: "11", Took: 10 * time.Second, Waited: 10 * time.Second}
	d.LogCall(add)
	if _, err := os.Stat(d.callLog()); err == nil {
		t.Error("written without a reader")
	}
	next := func(want ...Call) {
		t.Helper()
		if got, err := d.Calls(); err != nil || !slices.Equal(got, want) {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
	}
	next()
	d.LogCall(add)
	d.LogCall(del)
	next(add, del)
	next()
	must.Succeed(t, os.WriteFile(d.callLog(), make([]byte, maxCallLog+1), 0o600))
	d.LogCall(add)
	if info, err := os.Stat(d.callLog()); err != nil || info.Size() != maxCallLog+1 {
		t.Errorf("a log that nobody reads: %v, %v", info, err)
	}
	next()
	d.LogCall(del)
	os.Remove(d.callLog())
	next()
	d.LogCall(add)
	next(add)
}

func FuzzCall(f *testing.F) {
	f.Add("ADD ok 2000 1\n")
	f.Add("DEL 11 10000000 10000000\n")
	f.Add("A\"D o{k 1 1\n")
	f.Fuzz(func(t *testing.T, line string) {
		c, ok := parseCall(line)
		if ok && (strings.Trim(c.Verb+c.Result,
			"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") != "" ||
			c.Took < 0 || c.Waited < 0) {
			t.Errorf("%q is %+v", line, c)
		}
	})
}
