// Package machine has the machines of the test cluster: processes that are pid 1 of their own
// namespaces and start services there. machine.sh is that process.
package machine

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Script is the script of a machine's pid 1.
//
//go:embed machine.sh
var Script []byte

// A Machine is a running machine, which is known by its pid 1.
type Machine struct{ PID int }

// Booted reports whether the machine can start services.
func (m Machine) Booted() bool { return exists(m.file("booted")) }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// Service is a program that a machine runs until it is stopped.
type Service struct {
	Name string
	Argv []string
	Env  []string
	Log  string // to which its output is appended
	// Restart starts the service again, after a second, if it exits without having been stopped.
	Restart bool
}

// serviceScript is the script of a service.
//
//go:embed service.sh
var serviceScript string

func (m Machine) file(path string) string { return fmt.Sprintf("/proc/%d/root/run/%s", m.PID, path) }

// Start starts a service, and returns when it has a process.
func (m Machine) Start(ctx context.Context, s Service) error {
	path := m.file("services/" + s.Name)
	if exists(path + ".sh") {
		return errors.New(s.Name + " is already running")
	}
	os.Remove(path + ".stop")
	script := strings.NewReplacer("LOG", quote([]string{s.Log}), "NAME", s.Name, "ENVIRONMENT",
		quote(append(s.Env, "SERVICE="+s.Name)), "COMMAND", quote(s.Argv), "RESTART", strconv.FormatBool(s.Restart)).
		Replace(serviceScript)
	if err := os.WriteFile(path+".sh", []byte(script), 0o600); err != nil {
		return err
	}
	pipe, err := os.OpenFile(m.file("services.pipe"), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer pipe.Close()
	if _, err := fmt.Fprintln(pipe, s.Name); err != nil {
		return err
	}
	return Poll(ctx, time.Minute, func() error {
		if !exists(path) && exists(path+".sh") {
			return errors.New(s.Name + " has no process")
		}
		return nil
	})
}

func quote(words []string) string {
	var quoted []string
	for _, w := range words {
		quoted = append(quoted, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
	}
	return strings.Join(quoted, " ")
}

// Stop terminates a service, and kills it after ten seconds.
func (m Machine) Stop(ctx context.Context, name string) error {
	if m.end(ctx, name, "TERM", 10*time.Second) == nil {
		return nil
	}
	return m.Kill(ctx, name)
}

// Kill kills a service.
func (m Machine) Kill(ctx context.Context, name string) error {
	return m.end(ctx, name, "KILL", time.Minute)
}

func (m Machine) end(ctx context.Context, name, signal string, most time.Duration) error {
	path := m.file("services/" + name)
	if !exists(path + ".sh") {
		return nil
	}
	if err := os.WriteFile(path+".stop", nil, 0o600); err != nil {
		return err
	}
	if pid := m.Services()[name]; pid != 0 {
		m.Run(ctx, "kill", "-"+signal, strconv.Itoa(pid)) // it may have exited
	}
	return Poll(ctx, most, func() error {
		if exists(path + ".sh") {
			return fmt.Errorf("%s still runs after SIG%s", name, signal)
		}
		return nil
	})
}

// Services returns the pids of the running services in the machine, by name.
func (m Machine) Services() map[string]int {
	pids := map[string]int{}
	files, _ := filepath.Glob(m.file("services/*"))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			pids[filepath.Base(f)] = pid
		}
	}
	return pids
}

// Run runs a command in the machine, and returns its standard output. A non-zero exit code is an
// error with the output.
func (m Machine) Run(ctx context.Context, argv ...string) ([]byte, error) {
	if m.PID == 0 {
		return nil, errors.New("the machine is off")
	}
	cmd := exec.CommandContext(ctx, "nsenter", append([]string{"--all", fmt.Sprint("--target=", m.PID), "--"},
		argv...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(string(out)+errs.String()))
	}
	return out, err
}

// Poll calls f until it succeeds. After the limit it returns the last error.
func Poll(ctx context.Context, limit time.Duration, f func() error) (last error) {
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, limit, true, func(context.Context) (bool, error) {
		last = f()
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%w (waited %v)", cmp.Or(last, err), limit)
	}
	return nil
}
