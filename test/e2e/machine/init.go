package machine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Init is the machine's pid 1.
type Init struct {
	mu       sync.Mutex // held from fork until the maps are updated, so that reap finds every child
	services map[string]*service
	children map[int]chan syscall.WaitStatus
	waiting  map[string]bool // services that have exited and will be started again
	restarts map[string]int
}

type service struct {
	pid   int
	ended chan syscall.WaitStatus
	start Start
}

func newInit() *Init {
	return &Init{services: map[string]*service{}, children: map[int]chan syscall.WaitStatus{},
		waiting: map[string]bool{}, restarts: map[string]int{}}
}

// restartDelay is the time between the end of a service and its restart.
const restartDelay = time.Second

// Main sets up the machine, and serves requests until it is killed.
func Main(c Config) error {
	if err := setUp(c); err != nil {
		return err
	}
	in := newInit()
	os.Remove(c.Socket)
	l, err := net.Listen("unix", c.Socket)
	if err != nil {
		return err
	}
	go in.reap()
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go in.serve(conn)
	}
}

func (in *Init) serve(conn net.Conn) {
	defer conn.Close()
	var r Request
	reply := Reply{}
	err := json.NewDecoder(conn).Decode(&r)
	switch {
	case err != nil:
	case r.Start != nil:
		err = in.start(*r.Start)
	case r.Signal != nil:
		err = in.signal(*r.Signal)
	case r.Exec != nil:
		err = in.exec(*r.Exec, &reply)
	}
	if err != nil {
		reply.Error = err.Error()
	}
	reply.Services, reply.Restarts = in.list()
	json.NewEncoder(conn).Encode(reply)
}

func (in *Init) start(s Start) error {
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	fmt.Fprintf(log, "--- %s starts: %s\n", time.Now().UTC().Format(time.RFC3339Nano), strings.Join(s.Argv, " "))

	in.mu.Lock()
	defer in.mu.Unlock()
	if in.services[s.Name] != nil {
		return fmt.Errorf("%s is already running", s.Name)
	}
	pid, ended, err := in.fork(s.Argv, s.Env, null, log, log)
	if err != nil {
		return err
	}
	in.services[s.Name] = &service{pid, ended, s}
	delete(in.waiting, s.Name)
	return nil
}

// restart starts a service that has exited by itself, unless it was started or stopped meanwhile.
func (in *Init) restart(s Start) {
	time.Sleep(restartDelay)
	in.mu.Lock()
	waiting := in.waiting[s.Name]
	in.mu.Unlock()
	if !waiting {
		return
	}
	if err := in.start(s); err != nil {
		fmt.Fprintf(os.Stderr, "%s is not started again: %v\n", s.Name, err)
		return
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.restarts[s.Name]++
}

// fork starts a process. The caller holds in.mu. exec.Cmd cannot be used, because it waits for its
// child, and pid 1 must wait for all processes.
func (in *Init) fork(argv, env []string, files ...*os.File) (int, chan syscall.WaitStatus, error) {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return 0, nil, err
	}
	attr := &syscall.ProcAttr{Env: append(os.Environ(), env...), Dir: "/", Sys: &syscall.SysProcAttr{Setsid: true}}
	for _, f := range files {
		attr.Files = append(attr.Files, f.Fd())
	}
	pid, err := syscall.ForkExec(path, argv, attr)
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", path, err)
	}
	ended := make(chan syscall.WaitStatus, 1)
	in.children[pid] = ended
	return pid, ended, nil
}

func (in *Init) signal(s Signal) error {
	in.mu.Lock()
	svc := in.services[s.Name]
	delete(in.waiting, s.Name)
	if svc != nil {
		svc.start.Restart = false
		syscall.Kill(svc.pid, syscall.Signal(s.Number))
	}
	in.mu.Unlock()
	if svc == nil {
		return nil
	}
	for end := time.Now().Add(s.Wait); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		in.mu.Lock()
		ended := in.services[s.Name] != svc
		in.mu.Unlock()
		if ended {
			return nil
		}
	}
	return fmt.Errorf("%s still runs %v after signal %d", s.Name, s.Wait, s.Number)
}

func (in *Init) exec(e Exec, reply *Reply) error {
	dir, err := os.MkdirTemp("/run", "exec-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.WriteFile(filepath.Join(dir, "in"), e.Stdin, 0o600); err != nil {
		return err
	}
	stdin, err := os.Open(filepath.Join(dir, "in"))
	if err != nil {
		return err
	}
	defer stdin.Close()
	var out [2]*os.File
	for i, name := range []string{"out", "err"} {
		if out[i], err = os.Create(filepath.Join(dir, name)); err != nil {
			return err
		}
		defer out[i].Close()
	}
	in.mu.Lock()
	_, ended, err := in.fork(e.Argv, e.Env, stdin, out[0], out[1])
	in.mu.Unlock()
	if err != nil {
		return err
	}
	status := <-ended
	reply.Exit = status.ExitStatus()
	var buf [2]bytes.Buffer
	for i, f := range out {
		f.Seek(0, io.SeekStart)
		io.Copy(&buf[i], f)
	}
	reply.Stdout, reply.Stderr = buf[0].Bytes(), buf[1].Bytes()
	return nil
}

// list returns the pids of the running services, and how often services were restarted.
func (in *Init) list() (running, restarts map[string]int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	pids := map[string]int{}
	for name, s := range in.services {
		pids[name] = s.pid
	}
	return pids, maps.Clone(in.restarts)
}

// reap waits for ended processes: services, and orphans such as the containers' shims.
func (in *Init) reap() {
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGCHLD)
	for {
		var status syscall.WaitStatus
		in.mu.Lock()
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if pid > 0 {
			if ended := in.children[pid]; ended != nil {
				delete(in.children, pid)
				ended <- status
			}
			for name, s := range in.services {
				if s.pid == pid {
					delete(in.services, name)
					if s.start.Restart {
						in.waiting[name] = true
						go in.restart(s.start)
					}
				}
			}
		}
		in.mu.Unlock()
		if err == syscall.EINTR || pid > 0 {
			continue
		}
		<-c
	}
}
