package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A target is a package, and the other packages that test it, the fastest first.
type target struct {
	dir     string
	outside []string
}

// The programs' tests are the last, for the programs have to be built for them.
var (
	service = []string{"./pkg/ipam", "./pkg/maintain"}
	node    = []string{"./test/explore", "./test/script", "./test/agent", "./test/crash", "./test/netns"}

	targets = []target{
		{"pkg/lease", slices.Concat(service, node)},
		{"pkg/pool", slices.Concat(service, node)},
		{"pkg/store", slices.Concat(service, node)},
		{"pkg/hostlocal", slices.Concat([]string{"./pkg/adopt"}, service, node)},
		{"pkg/adopt", slices.Concat(service, node)},
		{"pkg/sandbox", slices.Concat(service, node)},
		{"pkg/evidence", slices.Concat(service, node)},
		{"pkg/transact", slices.Concat(service, node)},
		{"pkg/ipam", slices.Concat([]string{"./pkg/cniplugin"}, node)},
		{"pkg/maintain", slices.Concat([]string{"./pkg/ipam"}, node)},
		{"pkg/cniplugin", node},
		{"pkg/agent", []string{"./test/agent", "./test/netns"}},
		{"pkg/agent/retention", nil},
		{"pkg/agent/publish", nil},
		{"pkg/agent/reclaim", nil},
		{"pkg/manager/persistentpodstate", []string{"./pkg/manager/pin"}},
		{"pkg/manager/pin", nil},
	}
)

// limit is added to four times the duration of a step without a fault.
const limit = time.Minute

// tester runs the steps.
type tester struct {
	dir      string // for overlays, programs and what the tests write
	programs sync.Mutex
	mu       sync.Mutex // for the fields below
	steps    map[string]*step
	last     int
}

// step is the tests of one package.
type step struct {
	once sync.Once
	took time.Duration // without a fault
	err  error
}

// steps returns the packages whose tests run with a fault: its own and other packages, or those
// that test programs.
func (t target) steps(ofPrograms bool) []string {
	return slices.DeleteFunc(append([]string{"./" + t.dir}, t.outside...), func(pkg string) bool {
		return isOfPrograms(pkg) != ofPrograms
	})
}

// test plants a fault and runs the steps until one fails.
func (t *tester) test(f *fault, steps []string) (r result, err error) {
	began := time.Now()
	t.mu.Lock()
	t.last++
	dir := filepath.Join(t.dir, fmt.Sprint(t.last))
	t.mu.Unlock()
	defer remove(dir)
	overlay, err := f.plant(dir)
	if err != nil {
		return r, err
	}
	r = result{fault: f}
	for _, pkg := range steps {
		failure, hung, err := t.step(pkg, dir, overlay)
		if err != nil {
			return r, err
		}
		if failure != "" {
			r.killer, r.hung, r.own = pkg+" "+failure, hung, pkg == "./"+f.pkg
			break
		}
	}
	r.took = time.Since(began)
	return r, nil
}

// plant writes the changed file, and an overlay that replaces the original by it.
func (f *fault) plant(dir string) (overlay string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	file, err := filepath.Abs(f.file)
	if err != nil {
		return "", err
	}
	changed, overlay := filepath.Join(dir, filepath.Base(f.file)), filepath.Join(dir, "overlay.json")
	b, err := json.Marshal(map[string]any{"Replace": map[string]string{file: changed}})
	return overlay, errors.Join(err, os.WriteFile(changed, f.source, 0o644), os.WriteFile(overlay, b, 0o644))
}

// step runs the tests of a package. Before the first run it checks that they pass without a fault.
func (t *tester) step(pkg, dir, overlay string) (failure string, hung bool, err error) {
	t.mu.Lock()
	s := t.steps[pkg]
	if s == nil {
		s = &step{}
		t.steps[pkg] = s
	}
	t.mu.Unlock()
	s.once.Do(func() {
		began := time.Now()
		none := filepath.Join(t.dir, "none", strings.ReplaceAll(pkg, "/", "_"))
		defer remove(none)
		failure, _, err := t.goTest(pkg, none, "", 10*time.Minute)
		if failure != "" {
			err = fmt.Errorf("%s fails without a fault: %s", pkg, failure)
		}
		s.took, s.err = time.Since(began), err
	})
	if s.err != nil {
		return "", false, s.err
	}
	return t.goTest(pkg, dir, overlay, limit+4*s.took)
}

var failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// goTest returns the failure, "" if the tests pass.
func (t *tester) goTest(pkg, dir, overlay string, limit time.Duration) (failure string, hung bool, err error) {
	if isOfPrograms(pkg) {
		t.programs.Lock() // they count milliseconds, and want the machine for themselves
		defer t.programs.Unlock()
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if programs := programsOf(pkg); programs != nil {
		args := append([]string{"build", "-ldflags=-s -w", "-o", filepath.Join(dir, "bin") + "/"}, programs...)
		if out, err := goCommand(ctx, dir, overlay, args...); err != nil {
			return "", false, fmt.Errorf("go build: %w: %s", err, out)
		}
	}
	out, err := goCommand(ctx, dir, overlay, "test", "-vet=off", "-count=1", "-failfast", "-p=1",
		"-timeout="+limit.String(), pkg)
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", false, nil
	case ctx.Err() != nil || bytes.Contains(out, []byte("panic: test timed out")):
		return "takes longer than " + limit.Round(time.Second).String(), true, nil
	case !errors.As(err, &exit):
		return "", false, err
	case bytes.Contains(out, []byte("[build failed]")), bytes.Contains(out, []byte("[setup failed]")):
		return "", false, fmt.Errorf("does not compile: %s", out)
	}
	if m := failedTest.FindAllSubmatch(out, -1); m != nil {
		return string(m[len(m)-1][1]), false, nil
	}
	return "fails", false, nil
}

// isOfPrograms reports whether a package's tests run programs.
func isOfPrograms(pkg string) bool { return strings.HasPrefix(pkg, "./test/") }

// programsOf returns the programs that a package's tests run.
func programsOf(pkg string) []string {
	switch pkg {
	case "./test/script", "./test/crash":
		return []string{"./plugins/ipam/leasehold", "./cmd/leasectl"}
	case "./test/agent", "./test/netns":
		return []string{"./plugins/ipam/leasehold", "./cmd/leasectl", "./cmd/leasehold-agent"}
	}
	return nil
}

// goCommand runs the go command in its own process group, which it kills afterwards.
func goCommand(ctx context.Context, dir, overlay string, args ...string) ([]byte, error) {
	tmp := filepath.Join(dir, "tmp")
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return nil, err
	}
	flags := os.Getenv("GOFLAGS") + " -buildvcs=false"
	if overlay != "" {
		flags += " -overlay=" + overlay
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "LEASEHOLD_TEST_BIN="+filepath.Join(dir, "bin"), "TMPDIR="+tmp,
		"GOFLAGS="+strings.TrimSpace(flags))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel, cmd.WaitDelay = kill, 5*time.Second
	out, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		_ = kill() // mostly nobody is left
	}
	return out, err
}

// running is locked until this process ends, so that no other run uses the copy.
var running *os.File

// enterCopy copies the tracked and the not ignored files of the tree, and changes the working
// directory to the copy. It links the programs of other projects that tests use.
func enterCopy(dir string) error {
	files, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	running = lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another run is active in this tree: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for file := range strings.SplitSeq(strings.TrimRight(string(files), "\x00"), "\x00") {
		info, err := os.Stat(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed and not committed
		}
		if err != nil {
			return err
		}
		b, err := os.ReadFile(file)
		to := filepath.Join(dir, file)
		if err := errors.Join(err, os.MkdirAll(filepath.Dir(to), 0o755),
			os.WriteFile(to, b, info.Mode().Perm())); err != nil {
			return err
		}
	}
	plugins, err := filepath.Abs(".cache/cni-bin")
	if err != nil {
		return err
	}
	link := filepath.Join(dir, ".cache/cni-bin")
	if err := errors.Join(os.MkdirAll(filepath.Dir(link), 0o755), os.Symlink(plugins, link)); err != nil {
		return err
	}
	return os.Chdir(dir)
}

// remove unmounts what killed tests have left mounted below a directory, and removes it.
func remove(dir string) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(mounts)) {
		if words := strings.Fields(line); len(words) > 4 && strings.HasPrefix(words[4], dir+"/") {
			if unix.Unmount(words[4], unix.MNT_DETACH) != nil {
				return
			}
		}
	}
	os.RemoveAll(dir)
}
