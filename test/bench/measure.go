package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// bench is the state that the contenders share. It implements lab.TB.
type bench struct {
	node    *lab.Node
	sandbox *lab.Sandbox // its network namespace is used in all calls

	mu       sync.Mutex // of cleanups
	cleanups []func()
	closing  sync.Mutex
}

// A contender is an IPAM plugin with its own files.
type contender struct {
	b       *bench
	program string
	dir     string
	subnet  string
	stdin   string
	env     []string
	pod     string
	calls   int
}

// contender returns a plugin with a number of leases.
func (b *bench) contender(name string, leases int) *contender {
	return b.contenderIn(subnet, name, leases)
}

func (b *bench) contenderIn(subnet, name string, leases int) *contender {
	dir := filepath.Join(b.node.Dir, lab.Link("bench"))
	b.check(os.MkdirAll(dir, 0o755))
	c := &contender{b: b, program: b.copied(lab.Bin(name)), dir: dir, subnet: subnet,
		pod: "bench"}
	c.stdin = fmt.Sprintf(`{"cniVersion":"1.0.0","name":"bench","type":"bridge",`+
		`"ipam":{"type":%q,"ranges":[[{"subnet":%q}]],"dataDir":%q},`+
		`"runtimeConfig":{%q:{"io.kubernetes.cri/reserved-ip-duration":"10"}}}`,
		name, subnet, c.dataDir(), lab.Annotations)
	c.env = []string{
		"CNI_PATH=" + b.node.Path[0], "CNI_NETNS=" + b.sandbox.NetNS, "CNI_IFNAME=eth0",
		"LEASEHOLD_STATE_DIR=" + filepath.Join(dir, "state"), "LEASEHOLD_RUN_DIR=" + filepath.Join("/run/lab",
			filepath.Base(dir)),
	}
	if name == "host-local" {
		c.fillHostLocal(leases)
	} else {
		c.fillLeasehold(leases)
	}
	return c
}

// copied returns a copy of a program. A program that the linker has written starts a tenth slower
// than a copy, which is in memory in larger pieces (folios), so all programs are compared as
// copies.
func (b *bench) copied(program string) string {
	dir := filepath.Join(b.node.Dir, "copies")
	b.check(os.MkdirAll(dir, 0o755))
	path := filepath.Join(dir, filepath.Base(program))
	if _, err := os.Stat(path); err != nil {
		b.copy(program, path)
	}
	return path
}

func (b *bench) copy(program, path string) {
	content, err := os.ReadFile(program)
	b.check(err)
	b.check(os.WriteFile(path, content, 0o755))
}

// withoutWindow returns a configuration of a contender whose pods ask for no retention.
func withoutWindow(stdin string) string {
	return strings.Replace(stdin, `"io.kubernetes.cri/reserved-ip-duration":"10"`, "", 1)
}

func (c *contender) dataDir() string { return filepath.Join(c.dir, "networks") }

// id returns a new container id.
func (c *contender) id() string {
	c.calls++
	return fmt.Sprintf("%064x", c.calls)
}

// call runs the program once, and returns the duration.
func (c *contender) call(verb, id string) time.Duration {
	cmd := c.command(verb, id, c.pod)
	began := time.Now()
	err := cmd.Run()
	took := time.Since(began)
	c.failed(cmd, err)
	return took
}

func (c *contender) command(verb, id, pod string) *exec.Cmd {
	cmd := exec.Command(c.program)
	cmd.Env = append(slices.Clone(c.env), "CNI_COMMAND="+verb, "CNI_CONTAINERID="+id,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME="+pod+
			";K8S_POD_INFRA_CONTAINER_ID="+id+";K8S_POD_UID=uid-"+id)
	cmd.Stdin, cmd.Stdout = strings.NewReader(c.stdin), &bytes.Buffer{}
	return cmd
}

func (c *contender) failed(cmd *exec.Cmd, err error) {
	if err != nil {
		c.b.Fatalf("%s: %v: %s", c.program, err, cmd.Stdout)
	}
}

// burst runs n concurrent ADDs, and returns when each ended, from the start of the burst. It runs
// the DELs afterwards.
func (c *contender) burst(n int) []time.Duration {
	type job struct {
		cmd  *exec.Cmd
		id   string
		took time.Duration
		err  error
	}
	jobs := make([]job, n)
	for i := range jobs {
		jobs[i].id = c.id()
		jobs[i].cmd = c.command("ADD", jobs[i].id, fmt.Sprint("burst-", i))
	}
	var wait sync.WaitGroup
	began := time.Now()
	for i := range jobs {
		wait.Go(func() {
			jobs[i].err = jobs[i].cmd.Run()
			jobs[i].took = time.Since(began)
		})
	}
	wait.Wait()
	var times []time.Duration
	for _, j := range jobs {
		c.failed(j.cmd, j.err)
		c.call("DEL", j.id)
		times = append(times, j.took)
	}
	return times
}

// interleave calls a and b alternately, so that both are measured under the same conditions.
func interleave(rounds int, a, b func() time.Duration) (as, bs []time.Duration) {
	a()
	b()
	for i := range rounds {
		if i%2 == 0 {
			as, bs = append(as, a()), append(bs, b())
		} else {
			bs, as = append(bs, b()), append(as, a())
		}
	}
	return as, bs
}

// fdatasync measures fdatasync of one page.
func fdatasync(b *bench, dir string) (times []time.Duration) {
	f, err := os.Create(filepath.Join(dir, "fdatasync"))
	b.check(err)
	defer f.Close()
	b.check(unix.Fallocate(int(f.Fd()), 0, 0, 1<<20))
	b.check(f.Sync())
	page := make([]byte, 4096)
	for i := range b.rounds(300) {
		page[0]++
		_, err := f.WriteAt(page, int64(i%256)*4096)
		b.check(err)
		began := time.Now()
		b.check(unix.Fdatasync(int(f.Fd())))
		times = append(times, time.Since(began))
	}
	return times
}

func fileSystem(dir string) string {
	out, err := exec.Command("stat", "-f", "-c", "%T", dir).Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

func (b *bench) rounds(n int) int {
	if *quick {
		return max(3, n/10)
	}
	return n
}

func (b *bench) check(err error) {
	if err != nil {
		b.Fatalf("%v", err)
	}
}

// progress prints the progress to stderr.
func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "  "+format+"\n", args...)
}

func (b *bench) Helper() {}
func (b *bench) Cleanup(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cleanups = append(b.cleanups, f)
}
func (b *bench) TempDir() string {
	dir, err := os.MkdirTemp("", "bench-")
	b.check(err)
	return dir
}

func (b *bench) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
	b.close()
	os.Exit(1)
}

// close calls the cleanups in reverse order. Concurrent calls wait for each other.
func (b *bench) close() {
	b.closing.Lock()
	defer b.closing.Unlock()
	for f := b.lastCleanup(); f != nil; f = b.lastCleanup() {
		f()
	}
}

func (b *bench) lastCleanup() (f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.cleanups); n > 0 {
		f, b.cleanups = b.cleanups[n-1], b.cleanups[:n-1]
	}
	return f
}
