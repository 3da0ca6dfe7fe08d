package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

const plugin = "github.com/leasehold-cni/leasehold/plugins/ipam/leasehold"

// built are the programs of these tests: two versions of the real plugin, the real host-local, and
// leasectl.
var built struct{ ours, older, hostLocal, leasectl string }

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "installer-test-")
	if err != nil {
		panic(err)
	}
	for _, b := range []struct {
		path         *string
		name, source string
		flags        []string
	}{
		{&built.ours, leasehold, plugin, nil},
		{&built.older, "old", plugin, []string{"-ldflags=-X main.version=v0.0.1"}},
		{&built.hostLocal, "upstream", "github.com/containernetworking/plugins/plugins/ipam/host-local", nil},
		{&built.leasectl, "leasectl", "github.com/leasehold-cni/leasehold/cmd/leasectl", nil},
	} {
		*b.path = filepath.Join(dir, b.name)
		cmd := exec.Command("go", slices.Concat([]string{"build", "-o", *b.path}, b.flags, []string{b.source})...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			panic(fmt.Sprintf("%v\n%s", err, out))
		}
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// lay copies a program into a directory, as a package does: beside the old one, then renamed.
func lay(t *testing.T, d Dir, name, from string) {
	t.Helper()
	next := d.path(name + ".dpkg-new")
	must.Succeed(t, errors.Join(os.WriteFile(next, must.Read(t, from), 0o755), os.Rename(next, d.path(name))))
}

// assertSame checks that a plugin has the content of a program and can be run.
func assertSame(t *testing.T, d Dir, name, program string) {
	t.Helper()
	if !bytes.Equal(must.Read(t, program), must.Read(t, d.path(name))) {
		t.Errorf("%s is not %s", name, filepath.Base(program))
	}
	text, err := pluginVersion(d.path(name))
	must.Succeed(t, err, name, text)
}

// pluginVersion runs a plugin for its CNI versions.
func pluginVersion(path string) (string, error) {
	cmd := exec.Command(path)
	cmd.Env = []string{"CNI_COMMAND=VERSION"}
	cmd.Stdin = strings.NewReader(`{"cniVersion": "1.0.0"}`)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func assertNames(t *testing.T, d Dir, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(string(d))
	must.Succeed(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	check.Slices(t, got, want, "the directory has")
}

// TestForwarderWithoutHostLocal calls the forwarder beside a host-local that cannot be run. No
// error of a DEL may have a text that containerd takes for success.
func TestForwarderWithoutHostLocal(t *testing.T) {
	for name, put := range map[string]func(path string) error{
		"none":                   func(string) error { return nil },
		"a link to nothing":      func(path string) error { return os.Symlink("/nowhere", path) },
		"its interpreter misses": func(path string) error { return os.WriteFile(path, []byte("#!/nowhere\n"), 0o755) },
		"not executable":         func(path string) error { return os.WriteFile(path, nil, 0o644) },
		"not a program":          func(path string) error { return os.WriteFile(path, []byte{0}, 0o755) },
		"a directory":            func(path string) error { return os.Mkdir(path, 0o755) },
	} {
		t.Run(name, func(t *testing.T) {
			d := Dir(t.TempDir())
			lay(t, d, leasehold, built.leasectl)
			must.Succeed(t, put(d.path(hostLocal)))
			cmd := exec.Command(d.path(leasehold))
			cmd.Env = []string{"CNI_COMMAND=DEL", "CNI_CONTAINERID=c1", "CNI_IFNAME=eth0", "CNI_PATH=" + string(d)}
			cmd.Stdin = strings.NewReader(`{"cniVersion": "1.0.0", "name": "n", "ipam": {"type": "leasehold"}}`)
			out, err := cmd.Output()
			if err == nil || !strings.Contains(string(out), "install host-local (containernetworking/plugins) there") ||
				strings.Contains(string(out), "no such file") || strings.Contains(string(out), "not found") {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// TestForwarderPrintsVersions gives the forwarder what a runtime may have when it asks for
// versions.
func TestForwarderPrintsVersions(t *testing.T) {
	d := Dir(t.TempDir())
	lay(t, d, leasehold, built.leasectl)
	lay(t, d, hostLocal, built.hostLocal)
	for _, conf := range []string{`{"cniVersion":"1.0.0"}`, `{"cniVersion":"1.0.0","name":"n","type":"leasehold"}`,
		`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"ptp"},{"type":"leasehold"}]}`, ``} {
		cmd := exec.Command(d.path(leasehold))
		cmd.Env, cmd.Stdin = []string{"CNI_COMMAND=VERSION"}, strings.NewReader(conf)
		out, err := cmd.CombinedOutput()
		must.Succeed(t, err, conf, string(out))
		check.Contains(t, string(out), `"supportedVersions":["0.1.0"`, conf)
	}
}

// TestForwarderWaitsForALaterDEL runs the processes that DELs start to remove the forwarder, in the
// time of synctest. A DEL that comes while the first one's still waits is waited for as well.
func TestForwarderWaitsForALaterDEL(t *testing.T) {
	d, stored := Dir(t.TempDir()), t.TempDir()
	lay(t, d, leasehold, built.leasectl)
	defer func(dirs []string) { replays = dirs }(replays)
	replays = []string{stored}
	config := filepath.Join(stored, "net-c2-eth0")
	must.Succeed(t, os.WriteFile(config, []byte(`{"type":"leasehold"}`), 0o600))
	synctest.Test(t, func(t *testing.T) {
		var all sync.WaitGroup
		afterDEL := func() {
			if err := removeForwarder(d.path(leasehold)); err != nil {
				t.Error(err)
			}
		}
		all.Go(afterDEL) // of c1
		time.Sleep(forwarderWaits + time.Second/2)
		all.Go(afterDEL) // of c2
		time.Sleep(2 * time.Second)
		must.Succeed(t, os.Remove(config))
		all.Wait()
	})
	assertNames(t, d)
}

func TestUnreadableStoredConfigurationIsKept(t *testing.T) {
	stored := t.TempDir()
	defer func(dirs []string) { replays = dirs }(replays)
	replays = []string{stored}
	large := filepath.Join(stored, "large")
	must.Succeed(t, errors.Join(os.WriteFile(large, nil, 0o600), os.Truncate(large, files.Max+1),
		os.WriteFile(filepath.Join(stored, "broken"), []byte("{"), 0o600),
		os.Mkdir(filepath.Join(stored, "dir"), 0o700)))
	if paths, err := replayed(); err != nil || !slices.Equal(paths, []string{large}) {
		t.Errorf("%q, %v", paths, err)
	}
}

func TestInstallReplacesARunningProgram(t *testing.T) {
	d := Dir(t.TempDir())
	sleep, err := exec.LookPath("sleep")
	must.Succeed(t, err)
	lay(t, d, leasehold, sleep)
	running := exec.Command(d.path(leasehold), "60")
	must.Succeed(t, running.Start())
	defer running.Wait()
	defer running.Process.Kill()
	done, err := d.Install(must.Read(t, built.ours))
	if err != nil || !done {
		t.Fatalf("%v, %v", done, err)
	}
	assertSame(t, d, leasehold, built.ours)
	info, err := os.Stat(d.path(leasehold))
	must.Succeed(t, err)
	check.Equal(t, info.Mode().Perm(), 0o755, "mode")
	assertNames(t, d, leasehold)
	before := stampAt(d.path(leasehold))
	if done, err := d.Install(must.Read(t, built.ours)); done || err != nil || stampAt(d.path(leasehold)) != before {
		t.Errorf("the second install: %v, %v; want no change", done, err)
	}
}

func TestReplaceAndRestore(t *testing.T) {
	d := Dir(t.TempDir())
	lay(t, d, hostLocal, built.hostLocal)
	must.Succeed(t, errors.Join(os.Chown(d.path(hostLocal), 1001, 1001), os.Chmod(d.path(hostLocal), 0o775)))
	before, err := os.Stat(d.path(hostLocal))
	must.Succeed(t, err)
	for i := range 3 {
		done, err := d.Replace(must.Read(t, built.ours))
		must.Succeed(t, err)
		check.Equal(t, done, i == 0, "replacement", i)
	}
	assertSame(t, d, hostLocal, built.ours)
	assertSame(t, d, kept, built.hostLocal)
	assertNames(t, d, hostLocal, kept)
	for i := range 3 {
		done, err := d.restore()
		must.Succeed(t, err)
		check.Equal(t, done, i == 0, "restoration", i)
	}
	assertNames(t, d, hostLocal)
	after, err := os.Stat(d.path(hostLocal))
	must.Succeed(t, err)
	if !os.SameFile(before, after) || after.Mode() != before.Mode() || after.Sys().(*syscall.Stat_t).Uid != 1001 {
		t.Errorf("host-local is %v of %d, not the file that it was", after.Mode(), after.Sys().(*syscall.Stat_t).Uid)
	}
}

// TestReplaceKeepsOnlyHostLocal replaces what is found in host-local's place, where an older
// host-local is kept already.
func TestReplaceKeepsOnlyHostLocal(t *testing.T) {
	for name, c := range map[string]struct {
		program string // that is in host-local's place
		link    string // or where a link there leads to; {other} is another directory
		mode    fs.FileMode
		keeps   bool
	}{
		"a package's upgrade":        {program: built.hostLocal, mode: 0o755, keeps: true},
		"a relative link":            {link: "../versions/host-local", keeps: true},
		"an absolute link":           {link: "{other}/host-local", keeps: true},
		"an older leasehold":         {program: built.older, mode: 0o755},
		"a link to leasehold":        {link: leasehold},
		"a link that leads nowhere":  {link: "gone"},
		"a link to itself":           {link: hostLocal},
		"an empty file":              {program: "/dev/null", mode: 0o755},
		"a file that cannot be run":  {program: built.hostLocal, mode: 0o644},
		"a leasehold that cannot be": {program: built.older, mode: 0o644},
		"nothing":                    {},
	} {
		t.Run(name, func(t *testing.T) {
			d := Dir(filepath.Join(t.TempDir(), "bin"))
			other := Dir(filepath.Join(filepath.Dir(string(d)), "versions"))
			must.Succeed(t, errors.Join(os.Mkdir(string(d), 0o755), os.Mkdir(string(other), 0o755)))
			lay(t, other, hostLocal, built.hostLocal)
			lay(t, d, leasehold, built.ours)
			link := strings.Replace(c.link, "{other}", string(other), 1)
			if link != "" {
				must.Succeed(t, os.Symlink(link, d.path(hostLocal)))
			}
			if c.program != "" {
				lay(t, d, hostLocal, c.program)
				must.Succeed(t, os.Chmod(d.path(hostLocal), c.mode))
			}
			must.Succeed(t, os.WriteFile(d.path(kept), []byte("#!/bin/sh\necho old\n"), 0o755))
			old := stampAt(d.path(kept))
			if done, err := d.Replace(must.Read(t, built.ours)); !done || err != nil {
				t.Fatalf("%v, %v", done, err)
			}
			assertSame(t, d, hostLocal, built.ours)
			if info, err := os.Lstat(d.path(hostLocal)); err != nil || !info.Mode().IsRegular() {
				t.Errorf("host-local is %v, %v; want a file", info, err)
			}
			if c.keeps {
				to, _ := os.Readlink(d.path(kept))
				check.Equal(t, to, link, "the link that is kept")
				assertSame(t, d, kept, built.hostLocal)
			} else {
				check.Equal(t, stampAt(d.path(kept)), old, "what was kept")
			}
			assertNames(t, d, hostLocal, kept, leasehold)
			assertSame(t, other, hostLocal, built.hostLocal)
		})
	}
}

// TestReplaceDuringACopy replaces a host-local that cp is still writing. The copy is complete in
// what is kept; where it was a copy of leasehold, nothing is kept.
func TestReplaceDuringACopy(t *testing.T) {
	for from, keeps := range map[string]bool{built.hostLocal: true, built.older: false} {
		d := Dir(t.TempDir())
		content := must.Read(t, from)
		copying, err := os.OpenFile(d.path(hostLocal), os.O_CREATE|os.O_WRONLY, 0o755)
		must.Succeed(t, err)
		half := len(content) / 100
		_, err = copying.Write(content[:half])
		must.Succeed(t, err)
		_, err = d.Replace(must.Read(t, built.ours))
		must.Succeed(t, err)
		_, err = copying.Write(content[half:])
		must.Succeed(t, errors.Join(err, copying.Close()))
		assertSame(t, d, hostLocal, built.ours)
		_, err = d.Replace(must.Read(t, built.ours))
		must.Succeed(t, err)
		if keeps {
			assertSame(t, d, kept, from)
			assertNames(t, d, hostLocal, kept)
		} else {
			assertNames(t, d, hostLocal)
		}
	}
}

func TestReplaceErrors(t *testing.T) {
	d := Dir(t.TempDir())
	_, err := d.Replace(must.Read(t, built.ours))
	check.Error(t, err, "--cni-bin-dir has to be", "a directory without host-local")
	assertNames(t, d)
	must.Succeed(t, os.Mkdir(d.path(hostLocal), 0o755))
	_, err = d.Replace(must.Read(t, built.ours))
	check.Error(t, err, "not a file", "a directory of that name")
	assertNames(t, d, hostLocal)
	_, err = Dir(d.path("missing")).Replace(must.Read(t, built.ours))
	check.Is(t, err, fs.ErrNotExist, "a missing directory")
}

func TestRestore(t *testing.T) {
	for name, c := range map[string]struct {
		place, kept string // programs
		want        string // in host-local's place afterwards
		err         string
	}{
		"somebody has installed another": {built.hostLocal, built.hostLocal, built.hostLocal, ""},
		"host-local is missing":          {"", built.hostLocal, built.hostLocal, ""},
		"an older leasehold":             {built.older, built.hostLocal, built.hostLocal, ""},
		"nothing was kept":               {built.ours, "", built.ours, "install host-local"},
		"leasehold was kept":             {built.ours, built.older, built.ours, "install host-local"},
		"never replaced":                 {built.hostLocal, "", built.hostLocal, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := Dir(t.TempDir())
			for name, from := range map[string]string{hostLocal: c.place, kept: c.kept} {
				if from != "" {
					lay(t, d, name, from)
				}
			}
			_, err := d.restore()
			check.Error(t, err, c.err)
			assertSame(t, d, hostLocal, c.want)
			assertNames(t, d, hostLocal)
		})
	}
	d := Dir(t.TempDir())
	lay(t, d, hostLocal, built.ours)
	must.Succeed(t, os.Symlink("gone", d.path(kept)))
	_, err := d.restore()
	check.Error(t, err, "cannot be run", "what was kept leads nowhere")
	assertNames(t, d, hostLocal, kept)
}

// TestReplaceUnderLoad runs two installers, a package manager, and a runtime that calls host-local
// all the time, at once. One of the installers is killed again and again.
func TestReplaceUnderLoad(t *testing.T) {
	d := Dir(t.TempDir())
	lay(t, d, hostLocal, built.hostLocal)
	installer := func(ctx context.Context) ([]byte, error) {
		args := []string{"install", "--replace", "--cni-bin-dir=" + string(d)}
		return exec.CommandContext(ctx, built.leasectl, args...).CombinedOutput()
	}
	var behind atomic.Int32 // loops that have had fewer rounds; negative if one has failed
	loops := []func() error{
		func() error {
			if out, err := pluginVersion(d.path(hostLocal)); err != nil {
				return fmt.Errorf("host-local cannot be run: %w: %s", err, out)
			}
			return nil
		},
		func() error {
			if out, err := installer(context.Background()); err != nil {
				return fmt.Errorf("installer: %w: %s", err, out)
			}
			return nil
		},
		func() error {
			soon := time.Duration(time.Now().UnixNano() % 20_000_000)
			killed, cancel := context.WithTimeout(context.Background(), soon)
			defer cancel()
			_, _ = installer(killed)
			return nil
		},
		func() error {
			time.Sleep(100 * time.Millisecond)
			tmp := filepath.Join(string(d), "package")
			// Copied by another process: as long as a fork of this one has a file open for
			// writing, it cannot be run.
			err := exec.Command("install", "-m", "0755", built.hostLocal, tmp).Run()
			return errors.Join(err, os.Rename(tmp, d.path(hostLocal)))
		},
	}
	const rounds = 10 // of each loop at least
	var all sync.WaitGroup
	behind.Store(int32(len(loops)))
	for _, loop := range loops {
		all.Go(func() {
			for n := 1; behind.Load() > 0; n++ {
				if err := loop(); err != nil {
					t.Error(err)
					behind.Store(math.MinInt32)
				}
				if n == rounds {
					behind.Add(-1)
				}
			}
		})
	}
	all.Wait()
	out, err := installer(context.Background())
	must.Succeed(t, err, string(out))
	assertSame(t, d, hostLocal, built.ours)
	assertSame(t, d, kept, built.hostLocal)
	assertNames(t, d, hostLocal, kept)
}

// TestWatch installs host-local again while a watcher runs, in the time of synctest.
func TestWatch(t *testing.T) {
	d := Dir(t.TempDir())
	lay(t, d, hostLocal, built.hostLocal)
	program := must.Read(t, built.ours)
	_, err := d.Replace(program)
	must.Succeed(t, err)
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go d.Watch(ctx, program, slog.New(slog.NewTextHandler(&text, nil)))
		// after returns what the watcher says in a time, and whether host-local is ours then.
		after := func(wait time.Duration) (said string, ours bool) {
			t.Helper()
			time.Sleep(wait)
			synctest.Wait()
			ours, err := equal(program, d.path(hostLocal))
			if err != nil && !errors.Is(err, syscall.EISDIR) {
				t.Error(err)
			}
			said = text.String()
			text.Reset()
			return said, ours
		}
		for _, c := range []struct {
			about  string
			change func()
			ours   bool
			said   string // once, in a minute
		}{
			{"nothing changes", func() {}, true, ""},
			{"host-local is installed", func() { lay(t, d, hostLocal, built.hostLocal) }, true, "overwritten"},
			{"and again", func() { lay(t, d, hostLocal, built.hostLocal) }, true, "overwritten"},
			{"it is removed", func() { must.Succeed(t, os.Remove(d.path(hostLocal))) }, true, "overwritten"},
			{"it is a directory", func() {
				must.Succeed(t, errors.Join(os.Remove(d.path(hostLocal)), os.Mkdir(d.path(hostLocal), 0o755)))
			}, false, "level=ERROR"},
			{"the directory is removed", func() { must.Succeed(t, os.Remove(d.path(hostLocal))) }, true, "overwritten"},
		} {
			c.change()
			said, ours := after(time.Minute)
			if ours != c.ours || strings.Count(said, "\n") != min(len(c.said), 1) || !strings.Contains(said, c.said) {
				t.Errorf("%s: host-local is ours: %v; it says %q, want %q once", c.about, ours, said, c.said)
			}
		}
		for range 20 { // written to all the time
			lay(t, d, hostLocal, built.hostLocal)
			if _, ours := after(pollEvery); ours {
				t.Error("a file that is being written was replaced")
			}
		}
		if _, ours := after(2 * pollEvery); !ours {
			t.Error("a file that is not written to any more is not replaced")
		}
	})
	assertSame(t, d, kept, built.hostLocal)
}
