package files

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRead(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, size int) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(write("target", 1), link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{
		write("empty", 0): true, write("largest", Max): true, write("larger", Max+1): false, link: false, dir: false,
		"/proc/self/mem": false, // opens, and its first byte cannot be read
	} {
		b, at, err := Read(path)
		if (err == nil) != want {
			t.Errorf("%s: %d bytes, %v", path, len(b), err)
		}
		if info, e := os.Stat(path); want && (e != nil || !at.Equal(info.ModTime()) || int64(len(b)) != info.Size()) {
			t.Errorf("%s: %d bytes of %s, %v", path, len(b), at, e)
		}
	}
}
