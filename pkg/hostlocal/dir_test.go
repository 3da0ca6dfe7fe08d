package hostlocal

import (
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// openNew opens the directory of a new pool, until the test ends.
func openNew(t *testing.T) (lease.Pool, *Dir) {
	p := lease.Pool{DataDir: t.TempDir(), Network: "cbr0"}
	d, err := Open(t.Context(), p)
	must.Succeed(t, err)
	t.Cleanup(d.Close)
	return p, d
}

// A mark that cannot be written may prove more than is there, so it is removed.
func TestMarkThatCannotBeWritten(t *testing.T) {
	p, d := openNew(t)
	must.Succeed(t, d.SetMark(true, Owner{}))
	// A read lease on the file (fcntl(2)), as file servers take it, stops only writers.
	reader, err := os.Open(filepath.Join(Path(p), markName))
	must.Succeed(t, err)
	defer reader.Close()
	_, err = unix.FcntlInt(reader.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	must.Succeed(t, err)
	check.Is(t, d.SetMark(false, Owner{}), unix.EWOULDBLOCK)
	if IsMarked(p) {
		t.Error("the mark is left")
	}
}

// The file of an address is written without the mark, and removed once or twice.
func TestWriteAndRemove(t *testing.T) {
	p, d := openNew(t)
	l := lease.Lease{State: lease.Bound, Pool: p, Address: netip.MustParseAddr("10.0.0.2"),
		Holder: lease.Holder{ContainerID: "c1", IfName: "eth0"}}
	must.Succeed(t, d.Write(l, lease.Instant{}))
	if _, found, err := d.Read(l.Address); !found || err != nil || IsMarked(p) {
		t.Errorf("the file exists: %v, %v, marked: %v", found, err, IsMarked(p))
	}
	for range 2 {
		err := d.Remove(l.Address)
		if _, found, _ := d.Read(l.Address); err != nil || found {
			t.Errorf("removed: %v, %v", !found, err)
		}
	}
}

// A reader without the lock sees the mark, and the addresses whose files have the names that
// host-local gives them.
func TestOpenUnlocked(t *testing.T) {
	p := lease.Pool{DataDir: t.TempDir(), Network: "cbr0"}
	if d, err := OpenUnlocked(p); d != nil || err != nil {
		t.Errorf("no directory: %+v, %v", d, err)
	}
	d, err := Open(t.Context(), p)
	must.Succeed(t, err)
	defer d.Close()
	for name, want := range map[string][]string{
		"10.0.0.9": {"10.0.0.9"}, "fd00::1": {"fd00::1"}, "10.0.0.10": {"10.0.0.10"}, "FD00::2": nil, "fd00:0::3": nil,
		"010.0.0.3": nil, "::ffff:10.0.0.4": nil, "fe80::1%eth0": nil, "last_reserved_ip.0": nil,
	} {
		path := filepath.Join(Path(p), name)
		must.Succeed(t, os.WriteFile(path, []byte("c1\r\neth0"), 0o600))
		if addrs, err := d.Addresses(); err != nil || !slices.Equal(texts(addrs), want) {
			t.Errorf("file %s: addresses %v, %v", name, addrs, err)
		}
		must.Succeed(t, os.Remove(path))
	}
	for _, name := range []string{"fd00::1", "10.0.0.9", "10.0.0.10"} {
		must.Succeed(t, os.WriteFile(filepath.Join(Path(p), name), nil, 0o600))
	}
	for _, all := range []bool{true, false} {
		must.Succeed(t, d.SetMark(all, Owner{}))
		if !d.Mark.Exists || d.Mark.Complete != all {
			t.Errorf("the mark is set to %v: marked %v, complete %v", all, d.Mark.Exists, d.Mark.Complete)
		}
		reader, err := OpenUnlocked(p)
		must.Succeed(t, err)
		if !reader.Mark.Exists || reader.Mark.Complete != all {
			t.Errorf("the mark is %v: %+v", all, reader)
		}
		addrs, err := reader.Addresses()
		must.Succeed(t, err)
		check.Slices(t, texts(addrs), []string{"10.0.0.10", "10.0.0.9", "fd00::1"})
	}
}

// A directory that cannot be read is an error; it is not without files.
func TestAddressesOfADirectoryThatCannotBeRead(t *testing.T) {
	p, d := openNew(t)
	must.Succeed(t, os.RemoveAll(Path(p)))
	for name, make := range map[string]func() error{
		"it is gone":        func() error { return nil },
		"a file":            func() error { return os.WriteFile(Path(p), nil, 0o600) },
		"a link to nowhere": func() error { return os.Symlink("nowhere", Path(p)) },
		"a link to itself":  func() error { return os.Symlink("cbr0", Path(p)) },
	} {
		must.Succeed(t, make())
		addrs, err := d.Addresses()
		check.Error(t, err, Path(p), name, addrs)
		must.Succeed(t, os.RemoveAll(Path(p)))
	}
}

func texts(addrs []netip.Addr) (out []string) {
	for _, a := range addrs {
		out = append(out, a.String())
	}
	return out
}

// TestMarks reads the marks that may be there.
func TestMarks(t *testing.T) {
	p, _ := openNew(t)
	for text, want := range map[string]bool{
		markAll + "\n":     true,
		markAll + "\n\n\n": true, // written over a longer one (files.Write)
		markShort + "\n":   false,
		"":                 false,
		"a b c\na b c\n":   false, // not ours, so that it names no owner
	} {
		must.Succeed(t, os.WriteFile(filepath.Join(Path(p), markName), []byte(text), 0o600))
		d, err := OpenUnlocked(p)
		if err != nil || !d.Mark.Exists || d.Mark.Complete != want || d.Mark.Owner != (Owner{}) {
			t.Errorf("mark %q: %+v, %v", text, d, err)
		}
	}
}

// TestOwner verifies that a mark names its owner, and that only another store of another machine,
// or one that is elsewhere on the same machine, is another node's.
func TestOwner(t *testing.T) {
	p := lease.Pool{DataDir: t.TempDir(), Network: "cbr0"}
	here := filepath.Join(p.DataDir, "a store")
	must.Succeed(t, os.WriteFile(here, nil, 0o600))
	a, b := Owner{"1111", "aaaa", here}, Owner{"2222", "bbbb", "/gone"}
	check.Equal(t, ReadMark(p).Owner, Owner{}, "no directory")
	for _, c := range []struct{ set, want Owner }{{a, a}, {a, a}, {b, b}, {Owner{}, Owner{}}} {
		d, err := Open(t.Context(), p)
		must.Succeed(t, err)
		err = d.SetMark(true, c.set)
		if d.Close(); err != nil || ReadMark(p).Owner != c.want {
			t.Errorf("%+v: %+v, %v", c.set, ReadMark(p).Owner, err)
		}
		if d, err := OpenUnlocked(p); err != nil || !d.Mark.Complete || d.Mark.Owner != c.want {
			t.Errorf("%+v: %+v, complete: %v, %v", c.set, d.Mark.Owner, d.Mark.Complete, err)
		}
	}
	for _, c := range []struct {
		one, other Owner
		want       bool
	}{
		{a, b, true}, {b, a, true}, {a, a, false}, {a, Owner{"1111", "bbbb", "/gone"}, false},
		{a, Owner{"2222", "aaaa", here}, false}, {a, Owner{"2222", "aaaa", "/gone"}, true},
		{Owner{"2222", "aaaa", "/gone"}, a, false}, {a, Owner{"2222", "", "/gone"}, true},
		{a, Owner{"", "bbbb", "/gone"}, false}, {Owner{}, Owner{}, false}, {Owner{}, a, false}, {a, Owner{}, false},
	} {
		check.Equal(t, c.one.IsOther(c.other), c.want, c.one, "and", c.other)
	}
}

// TestProbeLock compares ProbeLock with Open, which creates what is missing. ProbeLock changes
// nothing.
func TestProbeLock(t *testing.T) {
	for name, setUp := range map[string]string{
		"nothing":                           "",
		"a directory":                       "mkdir -p data/cbr0",
		"a lock":                            "mkdir -p data/cbr0; touch data/cbr0/lock",
		"a link to a directory":             "mkdir -p disk/cbr0; ln -s disk data",
		"a link to a network's directory":   "mkdir -p data disk; ln -s ../disk data/cbr0",
		"a link to what is not there":       "ln -s disk data",
		"an absolute one":                   "ln -s $PWD/disk/networks data",
		"a network's link to nothing":       "mkdir data; ln -s ../disk data/cbr0",
		"a file in place of the directory":  "touch data",
		"a file in place of the network's":  "mkdir data; touch data/cbr0",
		"a directory in place of the lock":  "mkdir -p data/cbr0/lock",
		"a lock that is a link to itself":   "mkdir -p data/cbr0; ln -s lock data/cbr0/lock",
		"a lock that is a link to nothing":  "mkdir -p data/cbr0; ln -s ../../disk/lock data/cbr0/lock",
		"a lock elsewhere, not created yet": "mkdir -p data/cbr0 disk; ln -s ../../disk/lock data/cbr0/lock",
		"a lock elsewhere":                  "mkdir -p data/cbr0 disk; touch disk/lock; ln -s $PWD/disk/lock data/cbr0",
		"a FIFO in place of the lock":       "mkdir -p data/cbr0; mkfifo data/cbr0/lock",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			script := func(text string) string {
				t.Helper()
				c := exec.Command("sh", "-ec", text)
				c.Dir = dir
				out, err := c.CombinedOutput()
				must.Succeed(t, err, string(out))
				return string(out)
			}
			script(setUp)
			p := lease.Pool{DataDir: filepath.Join(dir, "data"), Network: "cbr0"}
			before := script("find . | sort")
			probed := ProbeLock(p)
			check.Equal(t, script("find . | sort"), before, "the files")
			d, err := Open(t.Context(), p)
			check.Equal(t, probed == nil, err == nil, "ProbeLock returns", probed, "and Open", err)
			if err == nil {
				d.Close()
			}
		})
	}
}
