package files

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, size int) string {
		t.Helper()
		path := filepath.Join(dir, name)
		must.Succeed(t, os.WriteFile(path, make([]byte, size), 0o600))
		return path
	}
	link := filepath.Join(dir, "link")
	must.Succeed(t, os.Symlink(write("target", 1), link))
	for path, want := range map[string]bool{
		write("empty", 0): true, write("largest", Max): true, write("larger", Max+1): false, link: false, dir: false,
		"/proc/self/mem": false, // opens, and its first byte cannot be read
	} {
		b, at, err := Read(path)
		check.Equal(t, err == nil, want, path, err)
		if info, e := os.Stat(path); want && (e != nil || !at.Equal(info.ModTime()) || int64(len(b)) != info.Size()) {
			t.Errorf("%s: %d bytes of %s, %v", path, len(b), at, e)
		}
	}
}

func TestReadLinked(t *testing.T) {
	dir := t.TempDir()
	target, link, fifo := filepath.Join(dir, "target"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	must.Succeed(t, errors.Join(os.WriteFile(target, []byte("x"), 0o600), syscall.Mkfifo(fifo, 0o600)))
	long := time.Now().Add(-time.Hour)
	must.Succeed(t, os.Chtimes(target, long, long))
	time.Sleep(20 * time.Millisecond) // the kernel's clock for files has ticks
	before := time.Now()
	time.Sleep(20 * time.Millisecond)
	must.Succeed(t, os.Symlink("target", link))
	_, own, err := ReadLinked(target)
	if err != nil || !own.After(long) || !own.Before(before) {
		t.Errorf("the target was changed at %s, %v; want a time before %s that cannot be set", own, err, before)
	}
	b, at, err := ReadLinked(link)
	if err != nil || string(b) != "x" || !at.After(before) {
		t.Errorf("link: %q, changed at %s, %v; want its target's content, and a time after %s", b, at, err, before)
	}
	for _, path := range []string{dir, fifo, filepath.Join(dir, "missing")} {
		if b, _, err := ReadLinked(path); err == nil {
			t.Errorf("%s: %q, want an error", path, b)
		}
	}
}

// TestWrite writes contents that are longer, shorter and as long as the one before.
func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, tt := range []struct{ content, want string }{
		{"first", "first"},
		{"a longer one", "a longer one"},
		{"short", "short"},
		{"", ""},
		{"again", "again"},
		{"fifth", "fifth"},
	} {
		must.Succeed(t, Write(path, tt.content))
		if got, _, err := Read(path); string(got) != tt.want || err != nil {
			t.Errorf("after Write(%q): %q, %v; want %q", tt.content, got, err, tt.want)
		}
	}

	// A file of somebody else is not kept at its size.
	must.Succeed(t, os.Truncate(path, 10*Max))
	must.Succeed(t, Write(path, "small"))
	if got, _, err := Read(path); string(got) != "small" || err != nil {
		t.Errorf("after Write over a large file: %d bytes, %v", len(got), err)
	}
}

// TestReplace replaces the target of a link, which keeps its mode and owner.
func TestReplace(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	must.Succeed(t, errors.Join(os.WriteFile(target, []byte("before"), 0o600), os.Chmod(target, 0o640),
		os.Chown(target, 7, 8), os.Symlink("target", link)))
	must.Succeed(t, Replace(link, []byte("after")))
	check.Equal(t, string(must.Read(t, target)), "after", "the target of the link")
	info, err := os.Stat(target)
	must.Succeed(t, err)
	owner := info.Sys().(*syscall.Stat_t)
	if info.Mode().Perm() != 0o640 || owner.Uid != 7 || owner.Gid != 8 {
		t.Errorf("mode %v of %d:%d, want 0640 of 7:8", info.Mode(), owner.Uid, owner.Gid)
	}
	if names, err := List(dir); err != nil || len(names) != 2 {
		t.Errorf("the directory has %q, %v", names, err)
	}
}

func TestCanonical(t *testing.T) {
	dir := Canonical(t.TempDir())
	must.Succeed(t, errors.Join(os.MkdirAll(filepath.Join(dir, "a/b"), 0o700),
		os.Symlink("a", filepath.Join(dir, "link")),
		os.Symlink("loop", filepath.Join(dir, "loop"))))
	for path, want := range map[string]string{
		"a": "a", "link": "a", "link/b": "a/b", "link/missing/too": "a/missing/too", "loop/b": "loop/b",
	} {
		check.Equal(t, Canonical(filepath.Join(dir, path)), filepath.Join(dir, want), path)
	}
	check.Equal(t, Canonical("/"), "/")
}

// A regular file whose content is waited for is refused.
func TestReadDoesNotWait(t *testing.T) {
	read := make(chan error, 1)
	go func() {
		for {
			if _, _, err := ReadLinked("/proc/kmsg"); err != nil { // there may be messages at first
				read <- err
				return
			}
		}
	}()
	select {
	case err := <-read:
		if !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, os.ErrPermission) {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("it waits")
	}
}
