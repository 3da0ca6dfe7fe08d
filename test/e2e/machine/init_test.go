package machine

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestRestart(t *testing.T) {
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	runs := func() int {
		data, err := os.ReadFile(ran)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Count(string(data), "x")
	}
	wait := func(count int) {
		t.Helper()
		for end := time.Now().Add(time.Minute); runs() < count; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("it has run %d times, want %d", runs(), count)
			}
		}
	}
	in := newInit()
	go in.reap()
	service := Start{Name: "service", Log: filepath.Join(dir, "log"), Restart: true,
		Argv: []string{"sh", "-c", "echo x >>" + ran + `; test "$(wc -l <` + ran + `)" = 1 || exec sleep 100`}}
	if err := in.start(service); err != nil {
		t.Fatal(err)
	}
	wait(2) // it exits the first time
	if err := in.signal(Signal{Name: service.Name, Number: int(syscall.SIGKILL), Wait: time.Minute}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(restartDelay + 500*time.Millisecond)
	if running, restarts := in.list(); len(running) != 0 || restarts[service.Name] != 1 || runs() != 2 {
		t.Errorf("running %v, restarts %v, %d runs; want a restart after the exit and none after the signal",
			running, restarts, runs())
	}
	service.Name, service.Restart = "once", false
	if err := os.Remove(ran); err != nil {
		t.Fatal(err)
	}
	if err := in.start(service); err != nil {
		t.Fatal(err)
	}
	wait(1)
	time.Sleep(restartDelay + 500*time.Millisecond)
	if runs() != 1 {
		t.Errorf("a service without Restart ran %d times", runs())
	}
}
