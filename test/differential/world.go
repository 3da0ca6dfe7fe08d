package differential

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// worldVar is set in the process of a world. Its value is the program that it runs.
const worldVar = "LEASEHOLD_DIFFERENTIAL_PROGRAM"

// world is a simulated machine for one of the programs: a process in mount, network and PID
// namespaces of its own, which runs the program for each call. So both programs get the same paths,
// and neither sees the files of the other.
type world struct {
	in  *gob.Encoder
	out *gob.Decoder
}

// The network namespaces of a world, beside that of the program. Each container has one of its own.
var namespaces = []string{"/run/netns/a", "/run/netns/b", "/run/netns/c"}

func netnsOf(id string) string {
	return namespaces[slices.Index([]string{"c1", "c2", id}, id)]
}

// unusable are directories in which no program can write files.
var unusable = map[string]bool{"/etc/passwd": true, "/proc/x": true, tooLong: true}

const tooLong = dir + "/ddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd" +
	"dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd" +
	"dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"

// The directories and files of a world.
const (
	dir        = "/var/lib/world" // the working directory
	fixed      = "/var/lib/files/"
	resolvConf = fixed + "resolv.conf"
	longLine   = fixed + "long.conf"
	largeFile  = fixed + "large.conf"
)

const resolvText = "# a comment\n; another\nnameserver 10.0.0.53 # the first word counts\n nameserver fd00::53\n" +
	"domain a.example\nsearch b.example c.example\noptions ndots:5 rotate\nnameserver\nsortlist x y\n"

// message is a call, or the wish for a machine that was never used.
type message struct {
	Call  Call
	Reset bool
}

func newWorld(program string) (*world, error) {
	cmd := lab.Isolated()
	cmd.Env = append(os.Environ(), worldVar+"="+lab.Bin(program))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &world{gob.NewEncoder(in), gob.NewDecoder(out)}, cmd.Start()
}

func (w *world) reset() error {
	_, err := w.send(message{Reset: true})
	return err
}

func (w *world) call(c Call) (Reply, error) { return w.send(message{Call: c}) }

func (w *world) send(m message) (r Reply, err error) {
	if err := w.in.Encode(m); err != nil {
		return r, err
	}
	return r, w.out.Decode(&r)
}

// serve is the process of a world.
func serve() error {
	if err := lab.SetUp(); err != nil {
		return err
	}
	for _, path := range namespaces {
		if err := lab.MountNetNS(path); err != nil {
			return err
		}
	}
	err := errors.Join(os.MkdirAll(fixed, 0o755), os.MkdirAll(dir, 0o755), os.Chdir(dir),
		os.WriteFile(resolvConf, []byte(resolvText), 0o644),
		os.WriteFile(longLine, []byte("nameserver 10.0.0.53\nsearch "+strings.Repeat("x", 70_000)+"\n"), 0o644),
		os.WriteFile(largeFile, []byte("nameserver 10.0.0.53\n"+strings.Repeat("# a comment\n", 100_000)), 0o644))
	if err != nil {
		return err
	}
	program := os.Getenv(worldVar)
	in, out := gob.NewDecoder(os.Stdin), gob.NewEncoder(os.Stdout)
	for {
		var m message
		if err := in.Decode(&m); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		var r Reply
		if m.Reset {
			err = reset()
		} else {
			r, err = run(program, m.Call)
		}
		if err == nil {
			err = out.Encode(r)
		}
		if err != nil {
			return err
		}
	}
}

// reset removes everything that the programs have written.
func reset() error {
	made, err := filepath.Glob(dir + "/*")
	for _, d := range append(made, "/var/lib/cni", "/var/lib/leasehold", "/run/leasehold") {
		err = errors.Join(err, os.RemoveAll(d))
	}
	return err
}

// run runs a program once. A program that hangs is killed, much later than a busy machine takes.
func run(program string, c Call) (Reply, error) {
	cmd := exec.Command(program)
	cmd.Env, cmd.Dir, cmd.Stdin, cmd.WaitDelay = c.environ(), dir, strings.NewReader(c.Stdin), time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		return Reply{}, err
	}
	kill := time.AfterFunc(20*time.Minute, func() { cmd.Process.Kill() })
	err := cmd.Wait()
	if !kill.Stop() {
		return Reply{}, fmt.Errorf("%s hung: %s", filepath.Base(program), c)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return Reply{}, err
	}
	return Reply{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}, nil
}
