package cniconf

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// build returns the path of leasehold's plugin, built as it is released.
func build(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "built")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=test", "-o", out,
		"../../plugins/ipam/leasehold")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return out
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	content, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, content, 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestResolve(t *testing.T) {
	other, err := os.Executable() // a Go program that is not leasehold's plugin
	if err != nil {
		t.Fatal(err)
	}
	dirs := []string{filepath.Join(t.TempDir(), "missing"), t.TempDir(), t.TempDir()}
	first, second := dirs[1], dirs[2]
	plugin := build(t)
	copyFile(t, plugin, filepath.Join(second, "leasehold"))
	copyFile(t, plugin, filepath.Join(second, "host-local"))
	copyFile(t, other, filepath.Join(first, "host-local"))
	copyFile(t, "/dev/null", filepath.Join(second, "script"))
	for from, to := range map[string]string{"host-local": "link", "nowhere": "dangling", ".": "dir"} {
		if err := os.Symlink(from, filepath.Join(second, to)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("script", filepath.Join(first, "dir")); err != nil { // dangling, in the first directory
		t.Fatal(err)
	}
	scriptDigest, err := Digest(filepath.Join(second, "script"))
	if err != nil {
		t.Fatal(err)
	}
	b := &Binaries{Dirs: dirs}
	for range 2 { // the second time from memory
		for kind, want := range map[string]Binary{
			"leasehold": {Path: filepath.Join(second, "leasehold"), Ours: true},
			"link":      {Path: filepath.Join(second, "link"), Ours: true},
			// The first directory that has one decides.
			"host-local": {Path: filepath.Join(first, "host-local")},
			"script":     {Path: filepath.Join(second, "script")},
			"dangling":   {}, "dir": {}, "nothing": {}, "": {}, "..": {},
			"../" + filepath.Base(second) + "/leasehold": {},
		} {
			got, err := b.Resolve(kind)
			if err != nil || got.Path != want.Path || got.Ours != want.Ours {
				t.Errorf("%q: %+v, %v; want %+v", kind, got, err, want)
			}
		}
	}
	b.Own = append(b.Own, scriptDigest)
	if got, err := b.Resolve("script"); err != nil || !got.Ours || !got.Executable {
		t.Errorf("script, whose digest is known: %+v, %v", got, err)
	}
	if err := os.Chmod(filepath.Join(second, "script"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Resolve("script"); err != nil || !got.Ours || got.Executable {
		t.Errorf("script without permission to run: %+v, %v", got, err)
	}
}

// A package manager replaces the file and gives it the time that the package says. The size may be
// the same.
func TestResolveNoticesAnOverwrite(t *testing.T) {
	dir := t.TempDir()
	path, long := filepath.Join(dir, "leasehold"), time.Now().Add(-1000*time.Hour)
	put := func(content string) {
		t.Helper()
		for _, err := range []error{
			os.WriteFile(path+".new", []byte(content), 0o755),
			os.Chtimes(path+".new", long, long), os.Rename(path+".new", path),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	put("ours")
	own, err := Digest(path)
	if err != nil {
		t.Fatal(err)
	}
	b := &Binaries{Dirs: []string{dir}, Own: [][32]byte{own}}
	for _, content := range []string{"ours", "them", "ours"} {
		put(content)
		got, err := b.Resolve("leasehold")
		if err != nil || got.Ours != (content == "ours") {
			t.Errorf("%s: %+v, %v", content, got, err)
		}
		if got.Changed.Before(long.Add(time.Hour)) {
			t.Errorf("%s: changed at %s, which is the time in the package", content, got.Changed)
		}
	}
}

// What cannot be read is neither ours nor another's.
func TestResolveUnreadable(t *testing.T) {
	dir := t.TempDir()
	loop := filepath.Join(dir, "loop")
	for from, to := range map[string]string{"loop": loop, "/proc/self/mem": filepath.Join(dir, "leasehold")} {
		if err := os.Symlink(from, to); err != nil {
			t.Fatal(err)
		}
	}
	for _, dirs := range [][]string{{dir}, {loop, t.TempDir()}} {
		b := &Binaries{Dirs: dirs}
		if got, err := b.Resolve("leasehold"); err == nil {
			t.Errorf("%v: %+v, want an error", dirs, got)
		}
	}
}
