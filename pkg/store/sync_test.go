package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const syncedEnv = "LEASEHOLD_TEST_SYNCED"

// A line of strace -y: the name of the call, and the paths of its files in order.
var (
	callName  = regexp.MustCompile(`^\d+ +(\w+)\(`)
	callPaths = regexp.MustCompile(`<(/[^>]*)>|"(/[^"]*)"`)
)

// A file is synced before it is renamed, and its directory after, so that a power failure leaves
// either the old file or the new one. (test/crash covers transactions, whose syncs are bbolt's.)
func TestRenamedFilesAreSynced(t *testing.T) {
	if dir := os.Getenv(syncedEnv); dir != "" {
		writeEveryFile(t, dir)
		return
	}
	dir, trace := t.TempDir(), filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command("strace", "-f", "-y", "-o", trace, "-e", "signal=none",
		"-e", "trace=write,pwrite64,writev,ftruncate,fallocate,fsync,fdatasync,rename,renameat,renameat2",
		os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), syncedEnv+"="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	// files with data in memory only; how often each name was given
	written, renamed := map[string]bool{}, map[string]int{}
	var unsynced []string // directories with a new name in memory only
	for line := range strings.Lines(string(lines)) {
		name := callName.FindStringSubmatch(line)
		var paths []string
		for _, m := range callPaths.FindAllStringSubmatch(line, -1) {
			if path := m[1] + m[2]; strings.HasPrefix(path, dir) {
				paths = append(paths, path)
			}
		}
		if name == nil || len(paths) == 0 {
			continue
		}
		switch name[1] {
		case "fsync", "fdatasync":
			delete(written, paths[0])
			unsynced = slices.DeleteFunc(unsynced, func(d string) bool { return d == paths[0] })
		case "rename", "renameat", "renameat2":
			from, to := paths[len(paths)-2], paths[len(paths)-1]
			if written[from] {
				t.Errorf("%s is renamed to %s before it is synced", from, to)
			}
			if slices.Contains(unsynced, filepath.Dir(to)) {
				t.Errorf("%s: renamed into before the last rename is synced", filepath.Dir(to))
			}
			renamed[strings.Split(filepath.Base(to), ".2")[0]]++
			unsynced = append(unsynced, filepath.Dir(to))
		default:
			written[paths[0]] = true
		}
	}
	if len(unsynced) > 0 {
		t.Errorf("directories not synced after a rename: %q", unsynced)
	}
	if renamed["leases.db"] != 3 { // created, moved to lost, created again
		t.Errorf("renames in the trace: %v; does strace work?", renamed)
	}
}

// writeEveryFile creates a store, and a store that replaces a lost one.
func writeEveryFile(t *testing.T, dir string) {
	s, ctx := New(Dirs{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}), context.Background()
	put := func(addr string) error {
		return s.Update(ctx, Options{}, func(tx *Tx) error {
			l := fresh(addr, "db-0", "c1")
			return tx.Put(l.Pool, l.Address, l)
		})
	}
	lose := func() error { return s.replace(fmt.Errorf("%w: by the test", ErrLost)) } // no other process uses the store
	err := errors.Join(put("10.0.0.5"), lose(), put("10.0.0.6"))
	if err != nil {
		t.Fatal(err)
	}
}
