package host

import (
	"os"

	"path/filepath"

	"strings"

	"testing"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

func TestEnterHostRootErrors(t *testing.T) {
	host := New("/proc", DefaultBootIDFile)
	if got, err := EnterHostRoot("/", host); got != host || err != nil {
		t.Errorf("%v", err)
	}
	for root, text := range map[string]string{
		"":                "/ or /proc/<pid>/root",
		"/host":           "/ or /proc/<pid>/root",
		"/proc/self/root": "/ or /proc/<pid>/root",
		"/proc/../root":   "/ or /proc/<pid>/root",
		"/proc/0/root":    "/ or /proc/<pid>/root",
		"/proc/" + strings.Repeat("9", 10) + "/root": "hostPID",
	} {
		_, err := EnterHostRoot(root, host)
		check.Error(t, err, text, root)
	}
}

func TestOpenDirPath(t *testing.T) {
	dir := t.TempDir()
	path, err := OpenDirPath(dir)
	must.Succeed(t, err)
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "token"), []byte("later"), 0o600))
	check.Equal(t, string(must.Read(t, path+"/token")), "later")
	gone := filepath.Join(dir, "gone")
	if _, err := OpenDirPath(gone); err == nil || err.Error() != "open "+gone+": no such file or directory" {
		t.Errorf("a missing directory: %v", err)
	}
}
