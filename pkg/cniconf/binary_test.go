package cniconf

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/built"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	writeProgram(t, to, must.Read(t, from))
}

// writeProgram writes an executable file.
func writeProgram(t *testing.T, path string, content []byte) {
	t.Helper()
	must.Succeed(t, os.WriteFile(path, content, 0o755))
}

func TestResolve(t *testing.T) {
	other, err := os.Executable() // a Go program that is not leasehold's plugin
	must.Succeed(t, err)
	dirs := []string{filepath.Join(t.TempDir(), "missing"), t.TempDir(), t.TempDir()}
	first, second := dirs[1], dirs[2]
	writeProgram(t, filepath.Join(second, "leasehold"), built.Plugin(t))
	writeProgram(t, filepath.Join(second, "host-local"), built.Plugin(t))
	copyFile(t, other, filepath.Join(first, "host-local"))
	copyFile(t, "/dev/null", filepath.Join(second, "script"))
	for from, to := range map[string]string{"host-local": "link", "nowhere": "dangling", ".": "dir"} {
		must.Succeed(t, os.Symlink(from, filepath.Join(second, to)))
	}
	if err := os.Symlink("script", filepath.Join(first, "dir")); err != nil { // dangling, in the first directory
		t.Fatal(err)
	}
	b := Binaries(dirs)
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

// A package manager replaces the file and gives it the time that the package says.
func TestResolveNoticesAnOverwrite(t *testing.T) {
	dir, long := t.TempDir(), time.Now().Add(-1000*time.Hour)
	path, plugin := filepath.Join(dir, "leasehold"), built.Plugin(t)
	b := Binaries{dir}
	for _, ours := range []bool{true, false, true} {
		content := plugin
		if !ours {
			content = make([]byte, len(plugin)) // of the same size
		}
		writeProgram(t, path+".new", content)
		must.Succeed(t, errors.Join(os.Chtimes(path+".new", long, long), os.Rename(path+".new", path)))
		got, err := b.Resolve("leasehold")
		must.Succeed(t, err)
		check.Equal(t, got.Ours, ours, got)
		if got.Changed.Before(long.Add(time.Hour)) {
			t.Errorf("changed at %s, which is the time in the package", got.Changed)
		}
	}
}
