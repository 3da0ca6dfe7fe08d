package main

import (
	"bytes"
	"context"
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
		{"pkg/host", slices.Concat(service, node)},
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
const limit = 20 * time.Second

// tester runs the steps.
type tester struct {
	dir      string   // for test binaries, programs and what the tests write
	env      []string // of go commands
	programs sync.Mutex
	mu       sync.Mutex // for steps
	steps    map[string]*step
}

// newTester plants the faults.
func newTester(dir string, packages []*pkgSites, faults []*fault) (*tester, error) {
	overlay, err := plant(dir, packages, faults)
	flags := strings.TrimSpace(os.Getenv("GOFLAGS") + " -buildvcs=false -overlay=" + overlay)
	return &tester{dir: dir, env: append(os.Environ(), "GOFLAGS="+flags), steps: map[string]*step{}}, err
}

// step is the tests of one package.
type step struct {
	once   sync.Once
	binary string
	took   time.Duration // without a fault
	err    error
}

// steps returns the packages whose tests run with a fault: its own and other packages, or those
// that test programs.
func (t target) steps(ofPrograms bool) []string {
	return slices.DeleteFunc(append([]string{"./" + t.dir}, t.outside...), func(pkg string) bool {
		return isOfPrograms(pkg) != ofPrograms
	})
}

// test runs the steps with a fault until one fails.
func (t *tester) test(f *fault, steps []string) (r result, err error) {
	began := time.Now()
	r = result{fault: f}
	for _, pkg := range steps {
		failure, hung, err := t.step(pkg, f)
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

// step runs the tests of a package. Before the first run it compiles them, and checks that they
// pass without a fault.
func (t *tester) step(pkg string, f *fault) (failure string, hung bool, err error) {
	t.mu.Lock()
	s := t.steps[pkg]
	if s == nil {
		s = &step{binary: filepath.Join(t.dir, strings.ReplaceAll(pkg[2:], "/", "_")+".test")}
		t.steps[pkg] = s
	}
	t.mu.Unlock()
	s.once.Do(func() {
		s.err = t.build("test", "-vet=off", "-c", "-ldflags=-s -w", "-o", s.binary, pkg)
		if s.err != nil {
			return
		}
		began := time.Now()
		failure, _, err := t.run(pkg, s.binary, &fault{}, 10*time.Minute)
		if failure != "" {
			err = fmt.Errorf("%s fails without a fault: %s", pkg, failure)
		}
		s.took, s.err = time.Since(began), err
	})
	if s.err != nil {
		return "", false, s.err
	}
	return t.run(pkg, s.binary, f, limit+4*s.took)
}

var failedTest = regexp.MustCompile(`(?m)^\s*--- FAIL: (\S+)`)

// run runs a test binary with a fault, in its own process group, which it kills afterwards. It
// returns the failure, "" if the tests pass.
func (t *tester) run(pkg, binary string, f *fault, limit time.Duration) (failure string, hung bool, err error) {
	if isOfPrograms(pkg) {
		t.programs.Lock() // they count milliseconds, and want the machine for themselves
		defer t.programs.Unlock()
	}
	dir, err := os.MkdirTemp(t.dir, "run")
	if err != nil {
		return "", false, err
	}
	defer remove(dir)
	bin, tmp := filepath.Join(dir, "bin"), filepath.Join(dir, "tmp")
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return "", false, err
	}
	if programs := programsOf(pkg); programs != nil {
		args := []string{"build", "-ldflags=-s -w " + f.linked(), "-o", bin + "/"}
		if err := t.build(append(args, programs...)...); err != nil {
			return "", false, err
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "-test.paniconexit0", "-test.failfast", "-test.timeout="+limit.String())
	cmd.Dir = pkg
	cmd.Env = append(slices.Clip(t.env), "LEASEHOLD_TEST_BIN="+bin, "TMPDIR="+tmp, plantedEnv+"="+f.id)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kill := func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Cancel, cmd.WaitDelay = kill, 5*time.Second
	out, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		_ = kill() // mostly nobody is left
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "", false, nil
	case ctx.Err() != nil || bytes.Contains(out, []byte("panic: test timed out")):
		return "takes longer than " + limit.Round(time.Second).String(), true, nil
	case errors.Is(err, exec.ErrWaitDelay):
		return "leaves processes", false, nil
	case !errors.As(err, &exit):
		return "", false, err
	}
	if m := failedTest.FindAllSubmatch(out, -1); m != nil {
		return string(m[len(m)-1][1]), false, nil
	}
	return "fails", false, nil
}

// build runs the go command.
func (t *tester) build(args ...string) error {
	cmd := exec.Command("go", args...)
	cmd.Env = t.env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
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

// enterCopy copies the tracked and the not ignored files of the tree, and changes the working
// directory to the copy. It links the programs of other projects that tests use.
func enterCopy(dir string) error {
	files, err := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").Output()
	if err != nil {
		return fmt.Errorf("git ls-files: %w", err)
	}
	// It is locked until this process ends, so that no other run uses the copy.
	lock, err := unix.Open(dir+".lock", unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir + ".lock", Err: err}
	}
	if err := unix.Flock(lock, unix.LOCK_EX|unix.LOCK_NB); err != nil {
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
