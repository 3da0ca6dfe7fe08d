package sandbox

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheViewIsProvenByTheSameWord(t *testing.T) {
	file := filepath.Join(t.TempDir(), "boot_id")
	if err := os.WriteFile(file, []byte("boot-1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := New("/proc", file)
	word := h.Spaces("boot-1")
	if !strings.HasPrefix(word, "boot-1 pid:") || !strings.Contains(word, " mnt:") {
		t.Fatalf("its word is %q", word)
	}
	if err := h.ProveView(word, "boot-1"); err != nil {
		t.Errorf("the plugin's word is ours: %v", err)
	}
	pid, _, _ := strings.Cut(word, " mnt:")
	for story, tt := range map[string]struct {
		host       *Host
		word, boot string
		want       string
	}{
		"other mounts":                    {h, pid + " mnt:1", "boot-1", "the plugin runs in"},
		"other processes":                 {h, strings.Replace(word, "pid:", "pid:1", 1), "boot-1", "the plugin runs in"},
		"no boot id":                      {h, word, "", "boot id"},
		"no /proc":                        {New(t.TempDir(), file), word, "boot-1", "other processes"},
		"through a process not to be had": {h.Through("0"), word, "boot-1", "cannot be read"},
	} {
		if err := tt.host.ProveView(tt.word, tt.boot); !errors.Is(err, ErrNotHost) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q", story, err, tt.want)
		}
	}
	if New(t.TempDir(), file).Spaces("boot-1") != "" || h.Spaces("") != "" {
		t.Error("a word of nothing")
	}
}

// Without the plugin's word only the machine's first namespaces are certain.
func TestWithoutAWordOnlyTheFirstIsCertain(t *testing.T) {
	h := New("/proc", DefaultBootIDFile)
	boot := h.BootID()
	pid, errPID := os.Readlink("/proc/self/ns/pid")
	own, errOwn := os.Readlink("/proc/self/ns/mnt")
	if err := errors.Join(errPID, errOwn); err != nil {
		t.Fatal(err)
	}
	first, err := os.Readlink("/proc/1/ns/mnt") // not everybody may
	isFirst := err == nil && pid == "pid:[4026531836]" && own == first
	for _, word := range []string{"", "another-boot pid:1 mnt:1"} {
		if err := h.ProveView(word, boot); (err == nil) != isFirst {
			t.Errorf("word %q: %v; the first: %v", word, err, isFirst)
		}
	}
}

func FuzzSpaceInode(f *testing.F) {
	f.Add("net:[4026531840]", "net")
	f.Add("mnt:[1]", "net")
	f.Fuzz(func(t *testing.T, link, kind string) {
		if n, ok := spaceInode(link, kind); ok && (!strings.HasPrefix(link, kind) || n == 0 && !strings.Contains(link, "0")) {
			t.Errorf("%q of kind %q is %d", link, kind, n)
		}
	})
}

func TestTwoLooksSeeMoreThanOne(t *testing.T) {
	a, b := NewProcesses(nil, 1, 2), NewProcesses(nil, 2, 3)
	both := a.And(b)
	for ino := range uint64(5) {
		if want := ino >= 1 && ino <= 3; both.inodes[ino] != want {
			t.Errorf("%d is in it: %v", ino, both.inodes[ino])
		}
	}
	if both.Unseen() != nil || a.And(NewProcesses(fs.ErrPermission)).Unseen() == nil || (Processes{}).And(a).Unseen() == nil {
		t.Error("it is complete if both are")
	}
	if a.inodes[3] {
		t.Error("the first look has changed")
	}
}
