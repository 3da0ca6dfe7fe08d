package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A tester runs the tests of packages.
type tester struct {
	dir      string
	programs sync.Mutex // the tests of programs count milliseconds, and want the machine for themselves

	mu        sync.Mutex // for the output too
	baselines map[string]func() (time.Duration, error)
}

// compiles reports whether a fault compiles.
func (t *tester) compiles(f *fault) bool {
	overlay, err := t.overlay(f)
	return err == nil && exec.Command("go", "build", "-overlay="+overlay, "./"+f.pkg).Run() == nil
}

// overlay writes the file with a fault, and what the go command needs to replace the original.
func (t *tester) overlay(f *fault) (file string, err error) {
	dir, err := os.MkdirTemp(t.dir, "fault")
	if err != nil {
		return "", err
	}
	original, err := filepath.Abs(f.file)
	if err != nil {
		return "", err
	}
	changed := filepath.Join(dir, filepath.Base(f.file))
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{original: changed}})
	file = filepath.Join(dir, "overlay.json")
	return file, errors.Join(err, os.WriteFile(changed, f.source(), 0o600), os.WriteFile(file, text, 0o600))
}

// test runs the tests of packages with a fault until one fails.
func (t *tester) test(f *fault, packages []string) error {
	overlay, err := t.overlay(f)
	if err != nil {
		return err
	}
	for _, pkg := range packages {
		took, err := t.baseline(pkg)()
		if err != nil {
			return err
		}
		if f.killer, err = t.run(pkg, overlay, 20*time.Second+4*took); f.killer != "" || err != nil {
			return err
		}
	}
	return nil
}

// baseline returns a function that returns how long the tests of a package take without a fault.
func (t *tester) baseline(pkg string) func() (time.Duration, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.baselines[pkg] == nil {
		t.baselines[pkg] = sync.OnceValues(func() (time.Duration, error) {
			began := time.Now()
			killer, err := t.run(pkg, "", 10*time.Minute)
			if killer != "" {
				err = fmt.Errorf("without a fault: %s", killer)
			}
			return time.Since(began), err
		})
	}
	return t.baselines[pkg]
}

var failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// run runs the tests of a package in a mount namespace and a process group of their own, which it
// kills afterwards. It returns which test failed, "" if none did.
func (t *tester) run(pkg, overlay string, limit time.Duration) (killer string, err error) {
	dir, err := os.MkdirTemp(t.dir, "run")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	env := append(os.Environ(), "LEASEHOLD_TEST_BIN="+dir, "TMPDIR="+dir, "GOTMPDIR="+t.dir)
	if strings.HasPrefix(pkg, "./test/") {
		t.programs.Lock()
		defer t.programs.Unlock()
		build := exec.Command("go", append([]string{"build", "-overlay=" + overlay, "-o", dir + "/"}, programs...)...)
		build.Env = append(env, "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Minute) // and the time to compile
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "go", "test", "-vet=off", "-count=1", "-failfast",
		"-overlay="+overlay, "-timeout="+limit.String(), pkg)
	cmd.Env, cmd.SysProcAttr = env, &syscall.SysProcAttr{Setpgid: true}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel, cmd.WaitDelay = kill, 5*time.Second
	out, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		_ = kill() // mostly nobody is left
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", nil
	case ctx.Err() != nil || bytes.Contains(out, []byte("panic: test timed out")):
		return pkg + " hangs", nil
	case !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay):
		return "", err
	}
	if m := failedTest.FindAllSubmatch(out, -1); m != nil {
		return pkg + " " + string(m[len(m)-1][1]), nil
	}
	return pkg + " fails", nil
}
