package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

func TestInstallReplacesARunningProgram(t *testing.T) {
	dir, src := t.TempDir(), t.TempDir()
	target, from := filepath.Join(dir, "plugin"), filepath.Join(src, "plugin")
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(target, old, 0o755); err != nil {
		t.Fatal(err)
	}
	running := exec.Command(target, "60")
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	defer running.Wait()
	defer running.Process.Kill()

	if err := os.WriteFile(from, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := install(from, dir); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(target)
	if err != nil || string(got) != "new" {
		t.Errorf("target has %q, %v; want %q", got, err, "new")
	}
	info, err := os.Stat(target)
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("target: %v, %v; want mode 0755", info.Mode(), err)
	}
	assertNames(t, dir, "plugin")
}

func TestInstallTwiceKeepsTheFile(t *testing.T) {
	dir, src := t.TempDir(), t.TempDir()
	from := filepath.Join(src, "plugin")
	if err := os.WriteFile(from, []byte("one"), 0o755); err != nil {
		t.Fatal(err)
	}
	var infos [2]os.FileInfo
	for i := range infos {
		if err := install(from, dir); err != nil {
			t.Fatal(err)
		}
		var err error
		if infos[i], err = os.Stat(filepath.Join(dir, "plugin")); err != nil {
			t.Fatal(err)
		}
	}
	if !os.SameFile(infos[0], infos[1]) {
		t.Error("the second install replaced an equal file")
	}
}

func TestFailedInstallLeavesNoFile(t *testing.T) {
	dir := t.TempDir()
	if err := install(filepath.Join(dir, "absent"), dir); err == nil {
		t.Error("installing an absent file succeeded")
	}
	assertNames(t, dir)
}

func assertNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if len(got) != len(want) || (len(got) > 0 && got[0] != want[0]) {
		t.Errorf("directory has %q, want %q", got, want)
	}
}
