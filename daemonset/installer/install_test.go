package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const plugin = "github.com/leasehold-cni/leasehold/plugins/ipam/leasehold"

// built are the programs of these tests: two versions of the real plugin, the real host-local, and
// the installer.
var built struct{ ours, older, hostLocal, installer string }

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "installer-test-")
	if err != nil {
		panic(err)
	}
	for _, b := range []struct {
		path         *string
		name, source string
		flags        []string
	}{
		{&built.ours, "new", plugin, nil},
		{&built.older, "old", plugin, []string{"-ldflags=-X main.version=v0.0.1"}},
		{&built.hostLocal, "upstream", "github.com/containernetworking/plugins/plugins/ipam/host-local", nil},
		{&built.installer, "installer", ".", nil},
	} {
		*b.path = filepath.Join(dir, b.name)
		cmd := exec.Command("go", slices.Concat([]string{"build", "-o", *b.path}, b.flags, []string{b.source})...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			panic(fmt.Sprintf("%v\n%s", err, out))
		}
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// open opens a program that lives as long as the test.
func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// lay copies a program into a directory, as a package does: beside the old one, then renamed.
func lay(t *testing.T, b bin, name, from string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(b.path(name+".dpkg-new"), content, 0o755)
	}
	if err = errors.Join(err, os.Rename(b.path(name+".dpkg-new"), b.path(name))); err != nil {
		t.Fatal(err)
	}
}

// must fails the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// assertSame checks that a plugin has the content of a program and can be run.
func assertSame(t *testing.T, b bin, name, program string) {
	t.Helper()
	want, err := os.ReadFile(program)
	must(t, err)
	have, err := os.ReadFile(b.path(name))
	must(t, err)
	if !bytes.Equal(want, have) {
		t.Errorf("%s is not %s", name, filepath.Base(program))
	}
	if text, err := pluginVersion(b.path(name)); err != nil {
		t.Errorf("%s cannot be run: %v\n%s", name, err, text)
	}
}

// pluginVersion runs a plugin for its CNI versions.
func pluginVersion(path string) (string, error) {
	cmd := exec.Command(path)
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	cmd.Stdin = strings.NewReader(`{"cniVersion": "1.0.0"}`)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func assertNames(t *testing.T, b bin, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(string(b))
	must(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("the directory has %q, want %q", got, want)
	}
}

func TestInstallReplacesARunningProgram(t *testing.T) {
	b := bin(t.TempDir())
	sleep, err := exec.LookPath("sleep")
	must(t, err)
	lay(t, b, leasehold, sleep)
	running := exec.Command(b.path(leasehold), "60")
	must(t, running.Start())
	defer running.Wait()
	defer running.Process.Kill()
	done, err := b.install(open(t, built.ours))
	if err != nil || !done {
		t.Fatalf("%v, %v", done, err)
	}
	assertSame(t, b, leasehold, built.ours)
	info, err := os.Stat(b.path(leasehold))
	must(t, err)
	if info.Mode().Perm() != 0o755 {
		t.Errorf("mode %v, want 0755", info.Mode())
	}
	assertNames(t, b, leasehold)
	before := stampAt(b.path(leasehold))
	if done, err := b.install(open(t, built.ours)); done || err != nil || stampAt(b.path(leasehold)) != before {
		t.Errorf("the second install: %v, %v; want no change", done, err)
	}
}

// What cannot be seen may run.
func TestRunning(t *testing.T) {
	self := strconv.Itoa(os.Getpid())
	for name, tt := range map[string]struct {
		programs map[string]string // by process, "" for a kernel thread
		pid      int
		err      bool
	}{
		"an empty /proc":                 {programs: nil, err: true},
		"the processes of another place": {programs: map[string]string{"1": "/bin/init"}, err: true},
		"no agent":                       {programs: map[string]string{self: "/installer", "2": ""}},
		"an agent":                       {programs: map[string]string{self: "/i", "7": "/leasehold-agent"}, pid: 7},
		"an agent whose program was replaced": {programs: map[string]string{self: "/installer",
			"7": "/leasehold-agent (deleted)"}, pid: 7},
		"a process that cannot be read": {programs: map[string]string{self: "/installer", "7": "unreadable"},
			err: true},
	} {
		u := uninstaller{proc: t.TempDir()}
		for pid, program := range tt.programs {
			dir := filepath.Join(u.proc, pid)
			must(t, os.Mkdir(dir, 0o755))
			switch program {
			case "":
			case "unreadable":
				must(t, os.Mkdir(filepath.Join(dir, "exe"), 0o755))
			default:
				must(t, os.Symlink(program, filepath.Join(dir, "exe")))
			}
		}
		if pid, err := u.running("leasehold-agent"); pid != tt.pid || (err != nil) != tt.err {
			t.Errorf("%s: process %d, %v; want %d, an error: %v", name, pid, err, tt.pid, tt.err)
		}
	}
}

func TestReplaceAndRestore(t *testing.T) {
	b := bin(t.TempDir())
	lay(t, b, hostLocal, built.hostLocal)
	must(t, errors.Join(os.Chown(b.path(hostLocal), 1001, 1001), os.Chmod(b.path(hostLocal), 0o775)))
	before, err := os.Stat(b.path(hostLocal))
	must(t, err)
	for i := range 3 {
		done, err := b.replace(open(t, built.ours))
		if err != nil || done != (i == 0) {
			t.Errorf("replacement %d: %v, %v", i, done, err)
		}
	}
	assertSame(t, b, hostLocal, built.ours)
	assertSame(t, b, kept, built.hostLocal)
	assertNames(t, b, hostLocal, kept)
	for i := range 3 {
		done, err := b.restore()
		if err != nil || done != (i == 0) {
			t.Errorf("restoration %d: %v, %v", i, done, err)
		}
	}
	assertNames(t, b, hostLocal)
	after, err := os.Stat(b.path(hostLocal))
	must(t, err)
	if !os.SameFile(before, after) || after.Mode() != before.Mode() || after.Sys().(*syscall.Stat_t).Uid != 1001 {
		t.Errorf("host-local is %v of %d, not the file that it was", after.Mode(), after.Sys().(*syscall.Stat_t).Uid)
	}
}

// TestReplaceKeepsOnlyHostLocal replaces what is found in host-local's place, where an older
// host-local is kept already.
func TestReplaceKeepsOnlyHostLocal(t *testing.T) {
	other := func(b bin) string { return filepath.Join(filepath.Dir(string(b)), "versions") }
	for name, c := range map[string]struct {
		make    func(t *testing.T, b bin) error
		keeps   bool   // what was there
		link    string // what is kept is a link
		prepare func(b bin) error
	}{
		"a package's upgrade": {make: func(t *testing.T, b bin) error {
			lay(t, b, hostLocal, built.hostLocal)
			return nil
		}, keeps: true},
		"a relative link": {make: func(t *testing.T, b bin) error {
			return os.Symlink("../versions/host-local", b.path(hostLocal))
		}, keeps: true, link: "../versions/host-local"},
		"an absolute link": {make: func(t *testing.T, b bin) error {
			return os.Symlink(filepath.Join(other(b), hostLocal), b.path(hostLocal))
		}, keeps: true, link: "absolute"},
		"an older leasehold": {make: func(t *testing.T, b bin) error {
			lay(t, b, hostLocal, built.older)
			return nil
		}},
		"a link to leasehold": {make: func(t *testing.T, b bin) error {
			lay(t, b, leasehold, built.ours)
			return os.Symlink(leasehold, b.path(hostLocal))
		}},
		"a link that leads nowhere": {make: func(t *testing.T, b bin) error {
			return os.Symlink("gone", b.path(hostLocal))
		}},
		"a link to itself": {make: func(t *testing.T, b bin) error {
			return os.Symlink(hostLocal, b.path(hostLocal))
		}},
		"an empty file": {make: func(t *testing.T, b bin) error {
			return os.WriteFile(b.path(hostLocal), nil, 0o755)
		}},
		"a file that cannot be run": {make: func(t *testing.T, b bin) error {
			return os.WriteFile(b.path(hostLocal), []byte("#!/bin/sh\n"), 0o644)
		}},
		"nothing": {make: func(t *testing.T, b bin) error { return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			b := bin(filepath.Join(t.TempDir(), "bin"))
			must(t, errors.Join(os.Mkdir(string(b), 0o755), os.Mkdir(other(b), 0o755)))
			lay(t, bin(other(b)), hostLocal, built.hostLocal)
			must(t, os.WriteFile(b.path(kept), []byte("#!/bin/sh\necho old\n"), 0o755))
			old := stampAt(b.path(kept))
			must(t, c.make(t, b))
			if done, err := b.replace(open(t, built.ours)); !done || err != nil {
				t.Fatalf("%v, %v", done, err)
			}
			assertSame(t, b, hostLocal, built.ours)
			if info, err := os.Lstat(b.path(hostLocal)); err != nil || !info.Mode().IsRegular() {
				t.Errorf("host-local is %v, %v; want a file", info, err)
			}
			link, _ := os.Readlink(b.path(kept))
			if want := strings.ReplaceAll(c.link, "absolute", filepath.Join(other(b), hostLocal)); link != want {
				t.Errorf("what is kept is a link to %q, want %q", link, want)
			}
			if c.keeps {
				assertSame(t, b, kept, built.hostLocal)
			} else if stampAt(b.path(kept)) != old {
				t.Error("what was kept is gone")
			}
			must(t, errors.Join(os.RemoveAll(b.path(leasehold))))
			assertNames(t, b, hostLocal, kept)
			assertSame(t, bin(other(b)), hostLocal, built.hostLocal)
		})
	}
}

// TestReplaceDuringACopy replaces a host-local that cp is still writing. The copy is complete in
// what is kept; where it was a copy of leasehold, nothing is kept.
func TestReplaceDuringACopy(t *testing.T) {
	for from, keeps := range map[string]bool{built.hostLocal: true, built.older: false} {
		b := bin(t.TempDir())
		content, err := os.ReadFile(from)
		must(t, err)
		copying, err := os.OpenFile(b.path(hostLocal), os.O_CREATE|os.O_WRONLY, 0o755)
		must(t, err)
		half := len(content) / 100
		_, err = copying.Write(content[:half])
		must(t, err)
		_, err = b.replace(open(t, built.ours))
		must(t, err)
		_, err = copying.Write(content[half:])
		must(t, errors.Join(err, copying.Close()))
		assertSame(t, b, hostLocal, built.ours)
		_, err = b.replace(open(t, built.ours))
		must(t, err)
		if keeps {
			assertSame(t, b, kept, from)
			assertNames(t, b, hostLocal, kept)
		} else {
			assertNames(t, b, hostLocal)
		}
	}
}

func TestReplaceErrors(t *testing.T) {
	b := bin(t.TempDir())
	if _, err := b.replace(open(t, built.ours)); err == nil || !strings.Contains(err.Error(), "--to has to be") {
		t.Errorf("a directory without host-local: %v", err)
	}
	assertNames(t, b)
	must(t, os.Mkdir(b.path(hostLocal), 0o755))
	if _, err := b.replace(open(t, built.ours)); err == nil || !strings.Contains(err.Error(), "not a file") {
		t.Errorf("a directory of that name: %v", err)
	}
	assertNames(t, b, hostLocal)
	if _, err := bin(b.path("missing")).replace(open(t, built.ours)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing directory: %v", err)
	}
}

func TestRestore(t *testing.T) {
	for name, c := range map[string]struct {
		place, kept string // programs
		want        string // in host-local's place afterwards
		err         string
	}{
		"somebody has installed another": {built.hostLocal, built.hostLocal, built.hostLocal, ""},
		"host-local is missing":          {"", built.hostLocal, built.hostLocal, ""},
		"an older leasehold":             {built.older, built.hostLocal, built.hostLocal, ""},
		"nothing was kept":               {built.ours, "", built.ours, "install host-local"},
		"leasehold was kept":             {built.ours, built.older, built.ours, "install host-local"},
		"never replaced":                 {built.hostLocal, "", built.hostLocal, ""},
	} {
		t.Run(name, func(t *testing.T) {
			b := bin(t.TempDir())
			for name, from := range map[string]string{hostLocal: c.place, kept: c.kept} {
				if from != "" {
					lay(t, b, name, from)
				}
			}
			_, err := b.restore()
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v, want %q", err, c.err)
			}
			assertSame(t, b, hostLocal, c.want)
			assertNames(t, b, hostLocal)
		})
	}
	b := bin(t.TempDir())
	lay(t, b, hostLocal, built.ours)
	must(t, os.Symlink("gone", b.path(kept)))
	if _, err := b.restore(); err == nil || !strings.Contains(err.Error(), "cannot be run") {
		t.Errorf("what was kept leads nowhere: %v", err)
	}
	assertNames(t, b, hostLocal, kept)
}

// TestReplaceUnderLoad runs two installers, a package manager, and a runtime that calls host-local
// all the time, at once. One of the installers is killed again and again.
func TestReplaceUnderLoad(t *testing.T) {
	b := bin(t.TempDir())
	lay(t, b, hostLocal, built.hostLocal)
	installer := func(ctx context.Context) ([]byte, error) {
		args := []string{"replace", "--from=" + built.ours, "--to=" + string(b)}
		return exec.CommandContext(ctx, built.installer, args...).CombinedOutput()
	}
	// Each change may make one of an installer's ten attempts fail. The package manager makes at
	// most one that has begun before the installer does, and these during one run of it.
	const changesPerRun = 8
	var changes atomic.Int32
	var behind atomic.Int32 // loops that have had fewer rounds; negative if one has failed
	loops := []func() error{
		func() error {
			if out, err := pluginVersion(b.path(hostLocal)); err != nil {
				return fmt.Errorf("host-local cannot be run: %w: %s", err, out)
			}
			return nil
		},
		func() error {
			changes.Store(changesPerRun)
			if out, err := installer(context.Background()); err != nil {
				return fmt.Errorf("installer: %w: %s", err, out)
			}
			return nil
		},
		func() error {
			soon := time.Duration(time.Now().UnixNano() % 20_000_000)
			killed, cancel := context.WithTimeout(context.Background(), soon)
			defer cancel()
			_, _ = installer(killed)
			return nil
		},
		func() error {
			time.Sleep(100 * time.Millisecond)
			for changes.Add(-1) < 0 && behind.Load() > 0 {
				time.Sleep(time.Millisecond)
			}
			tmp := filepath.Join(string(b), "package")
			// Copied by another process: as long as a fork of this one has a file open for
			// writing, it cannot be run.
			err := exec.Command("install", "-m", "0755", built.hostLocal, tmp).Run()
			return errors.Join(err, os.Rename(tmp, b.path(hostLocal)))
		},
	}
	const rounds = 30 // of each loop at least
	var all sync.WaitGroup
	behind.Store(int32(len(loops)))
	for _, loop := range loops {
		all.Go(func() {
			for n := 1; behind.Load() > 0; n++ {
				if err := loop(); err != nil {
					t.Error(err)
					behind.Store(math.MinInt32)
				}
				if n == rounds {
					behind.Add(-1)
				}
			}
		})
	}
	all.Wait()
	if out, err := installer(context.Background()); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	assertSame(t, b, hostLocal, built.ours)
	assertSame(t, b, kept, built.hostLocal)
	assertNames(t, b, hostLocal, kept)
}

// TestWatch goes through the life of a watcher with a clock of its own.
func TestWatch(t *testing.T) {
	b := bin(t.TempDir())
	lay(t, b, hostLocal, built.hostLocal)
	var text bytes.Buffer
	w := watcher{bin: b, program: open(t, built.ours), log: slog.New(slog.NewTextHandler(&text, nil))}
	_, err := b.replace(w.program)
	must(t, err)
	now := time.Now()
	// after returns how long it takes until host-local is ours, in seconds of the watcher's clock.
	after := func() int {
		for i := range 3600 {
			w.step(now)
			if same, err := equal(w.program, b.path(hostLocal)); same && err == nil {
				return i
			}
			now = now.Add(time.Second)
		}
		t.Fatalf("not replaced in an hour\n%s", &text)
		return 0
	}
	rest := func(d time.Duration) {
		for end := now.Add(d); now.Before(end); now = now.Add(time.Second) {
			w.step(now)
		}
	}
	rest(time.Minute)
	if text.Len() > 0 {
		t.Errorf("without a change it says %s", &text)
	}
	var waits []int
	for range 10 {
		lay(t, b, hostLocal, built.hostLocal)
		waits = append(waits, after())
		rest(5 * time.Second)
	}
	if want := []int{2, 2, 2, 3, 11, 27, 59, 123, 251, 295}; !slices.Equal(waits, want) {
		t.Errorf("another restorer, 5 s after each replacement: it waits for %v, want %v", waits, want)
	}
	n := strings.Count(text.String(), "overwritten")
	if n != 10 || !strings.Contains(text.String(), "nextNotBefore=5m0s") {
		t.Errorf("it says %d times that host-local was overwritten:\n%s", n, &text)
	}
	assertSame(t, b, kept, built.hostLocal)

	rest(11 * time.Minute)
	lay(t, b, hostLocal, built.hostLocal)
	if n := after(); n != 2 {
		t.Errorf("after a calm time it waits for %d s, want 2", n)
	}

	rest(11 * time.Minute)
	must(t, os.Remove(b.path(hostLocal)))
	if n := after(); n != 2 {
		t.Errorf("removed: it waits for %d s, want 2", n)
	}

	rest(11 * time.Minute)
	began := now
	for now.Sub(began) < 19*time.Second { // written to all the time
		lay(t, b, hostLocal, built.hostLocal)
		w.step(now)
		now = now.Add(time.Second)
	}
	if same, err := equal(w.program, b.path(hostLocal)); same || err != nil {
		t.Errorf("a file that is being written was replaced: %v", err)
	}
	if n := after(); n > 2 {
		t.Errorf("a file that is not written to any more is replaced after %d s, want 2", n)
	}

	text.Reset()
	must(t, errors.Join(os.Remove(b.path(hostLocal)), os.Mkdir(b.path(hostLocal), 0o755)))
	rest(time.Minute)
	if n := strings.Count(text.String(), "level=ERROR"); n != 1 {
		t.Errorf("an error that stays is logged %d times:\n%s", n, &text)
	}
	must(t, os.Remove(b.path(hostLocal)))
	if n := after(); n > 4 {
		t.Errorf("after the error it takes %d s", n)
	}
}

func TestCommands(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "no command"},
		{[]string{"restore"}, "unknown command"},
		{[]string{"install", "more"}, "unexpected argument"},
		{[]string{"install", "--watch"}, "not defined: -watch"},
		{[]string{"replace", "--dry-run"}, "not defined: -dry-run"},
		{[]string{"uninstall", "--from=/leasehold"}, "not defined: -from"},
		{[]string{"install", "--from=/nowhere"}, "no such file"},
		{[]string{"uninstall", "--host-root=/tmp"}, "/proc/<pid>/root"},
	} {
		err := run(context.Background(), c.args)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.args, err, c.want)
		}
	}
}

// TestLockIsReleasedIfCleaningFails verifies that the next installer does not wait for the lock of
// one that could not remove a temporary file.
func TestLockIsReleasedIfCleaningFails(t *testing.T) {
	b := bin(t.TempDir())
	left := b.path(unfinished + "directory")
	if err := os.MkdirAll(filepath.Join(left, "not-empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := b.lock(); err == nil {
		t.Fatal("a directory in the place of a temporary file was removed")
	}
	if err := os.RemoveAll(left); err != nil {
		t.Fatal(err)
	}
	unlock, err := b.lock()
	if err != nil {
		t.Fatalf("the lock is still held: %v", err)
	}
	unlock()
}
