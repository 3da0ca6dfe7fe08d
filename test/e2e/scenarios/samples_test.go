package scenarios

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// samplesEnv is the environment variable with the directory of a process that runs samples instead
// of scenarios.
const samplesEnv = "LEASEHOLD_SAMPLES"

// samples are scenarios that need no cluster and end in every possible way.
var samples = []scenario{
	works("passes", "-", func(*Test) {}),
	works("fatal", "-", func(t *Test) { t.Fatalf("no %s", "pod") }),
	works("error", "-", func(t *Test) { t.Must(errors.New("refused")) }),
	works("panics", "-", func(t *Test) {
		var none map[string]int
		none["x"] = 1
	}),
	works("never", "-", func(t *Test) {
		t.Eventually(time.Millisecond, "a pod", func() error { return errors.New("pending") })
	}),
	works("out-of-time", "-", func(t *Test) {
		t.Cleanup(func() { t.Logf("cleaned up") })
		t.Sleep(time.Hour)
	}),
	works("stuck", "-", func(t *Test) {
		<-t.Ctx.Done()
		for range 6000 { // like a call that ignores its context
			if _, err := os.Stat(filepath.Join(t.suite.failed, "stuck")); err == nil {
				return // the artefacts are there before the scenario ends
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("it is over and there are no artefacts")
	}),
	works("lost", "-", func(t *Test) { t.Lostf("10.0.0.1 became 10.0.0.2") }),
	keeps("kept", "-", func(*Test) {}),
	keeps("kept-lost", "-", func(t *Test) { t.Lostf("10.0.0.1 became 10.0.0.2") }),
	keeps("kept-broken", "-", func(t *Test) { t.Fatalf("no kubelet") }),
	ours("own", "-", func(*Test) {}),
	works("cleanup", "-", func(t *Test) {
		t.Cleanup(func() { t.Logf("cleanup first") })
		t.Cleanup(func() { t.Must(errors.New("busy")) })
		t.Cleanup(func() { panic("nil map") })
		t.Cleanup(func() { t.Logf("cleanup last") })
	}),
	works("overlap", "-", func(t *Test) { t.suite.overlap = func() string { return "10.0.0.1 is in a and in b" } }),
	works("after", "-", func(t *Test) { t.suite.overlap = func() string { return "" } }),
}

// runSamples runs the samples as TestCluster. The name of the directory says whether the plugin
// retains addresses.
func runSamples(ctx context.Context, m *testing.M, dir string) (int, error) {
	scenarios = &suite{ctx: ctx, table: samples, nodes: 3, retains: filepath.Base(dir) == "retains",
		limit: 500 * time.Millisecond, failed: filepath.Join(dir, "failed"), start: func() error { return nil },
		prepare: func(*Test) {}, overlap: func() string { return "" },
		collect: func(_ context.Context, t *Test, dir string) {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Errorf("%v", err)
			}
		}}
	for i := range scenarios.table { // the limit is for those that need it
		sc := &scenarios.table[i]
		if name := sc.name; name != "out-of-time" && name != "stuck" || filepath.Base(dir) == "interrupted" {
			sc.builds = time.Hour
		}
	}
	code := m.Run()
	return code, scenarios.close(os.Stdout, time.Second)
}

func samplesCommand(dir string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.Command(os.Args[0], append([]string{"-test.v", "-test.timeout=1h"}, args...)...)
	cmd.Env = append(os.Environ(), samplesEnv+"="+dir)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return cmd, &out
}

// TestScenariosFailAlone runs the samples in a process of their own, since most of them have to
// fail.
func TestScenariosFailAlone(t *testing.T) {
	tests := []struct {
		name, retains, without string // verdicts with and without retention; failures are in upper case
		text                   string
	}{
		{"passes", "passed", "passed", ""},
		{"fatal", "FAILED", "FAILED", "no pod"},
		{"error", "FAILED", "FAILED", "refused"},
		{"panics", "FAILED", "FAILED", "panic: assignment to entry in nil map"},
		{"never", "FAILED", "FAILED", "a pod: timed out after 1ms: pending"},
		{"out-of-time", "FAILED", "FAILED", "out of time"},
		{"stuck", "FAILED", "FAILED", "\nstuck: failed: out of time"},
		{"lost", "ADDRESS LOST", "ADDRESS LOST", "10.0.0.1 became"},
		{"kept", "passed", "PASSED, NOT EXPECTED", ""},
		{"kept-lost", "ADDRESS LOST", "expected failure", ""},
		{"kept-broken", "FAILED", "FAILED", "no kubelet"},
		{"own", "passed", "", ""},
		{"cleanup", "FAILED", "FAILED", "panic in a cleanup: nil map"},
		{"overlap", "FAILED", "FAILED", "an address was in two pods at once: 10.0.0.1 is in a and in b"},
		{"after", "passed", "passed", ""},
	}
	if len(tests) != len(samples) {
		t.Fatalf("%d samples, %d expectations", len(samples), len(tests))
	}
	for _, retains := range []bool{true, false} {
		dir := filepath.Join(t.TempDir(), map[bool]string{true: "retains", false: "does-not"}[retains])
		cmd, out := samplesCommand(dir, "-test.run=^TestCluster$")
		if err := cmd.Run(); err == nil {
			t.Fatalf("the samples passed:\n%s", out)
		}
		var failed []string
		passed := 0
		for _, tt := range tests {
			verdict := map[bool]string{true: tt.retains, false: tt.without}[retains]
			line, ran := "--- PASS: TestCluster/"+tt.name+" ", verdict != ""
			bad := ran && verdict == strings.ToUpper(verdict)
			if bad {
				line = "--- FAIL: TestCluster/" + tt.name + " "
				failed = append(failed, tt.name)
			} else if ran {
				passed++
			}
			if strings.Contains(out.String(), line) != ran {
				t.Errorf("retains %v: want %q in\n%s", retains, line, out)
			}
			if row := "\n" + tt.name + "  "; ran && !strings.Contains(between(out.String(), row, "\n"), verdict) {
				t.Errorf("retains %v: the summary has %q for %s, want %q",
					retains, between(out.String(), row, "\n"), tt.name, verdict)
			}
			if bad && !strings.Contains(out.String(), tt.text) {
				t.Errorf("retains %v: want %q in\n%s", retains, tt.text, out)
			}
			end := between(out.String(), "these scenarios failed:", "--- FAIL: TestCluster (")
			if strings.Contains(end, " "+tt.name+": ") != bad {
				t.Errorf("retains %v: the last lines of the group have a reason of %s: %v\n%s", retains, tt.name, !bad,
					end)
			}
			_, err := os.Stat(filepath.Join(dir, "failed", tt.name))
			if collected := err == nil; collected != (bad && tt.name != "cleanup") {
				t.Errorf("retains %v: artefacts of %s: %v", retains, tt.name, collected)
			}
		}
		names, err := os.ReadFile(filepath.Join(dir, "failed/names.txt"))
		if want := strings.Join(failed, "\n") + "\n"; err != nil || string(names) != want {
			t.Errorf("names.txt is %q, %v; want %q", names, err, want)
		}
		if order := between(out.String(), "cleanup last", "cleanup first"); !strings.Contains(order, "busy") {
			t.Errorf("the cleanups are not called in order:\n%s", out)
		}
		if want := fmt.Sprintf("\n%d passed, %d failed\n",
			passed, len(failed)); !strings.HasSuffix(out.String(), want) {
			t.Errorf("the output does not end with %q:\n%s", want, out)
		}
	}
}

// TestInterrupt interrupts a scenario: it cleans up, the next one does not start, and no
// names.txt is written.
func TestInterrupt(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "interrupted")
	cmd, _ := samplesCommand(dir, "-test.run=^TestCluster$/^(out-of-time|after)$")
	cmd.Stdout, cmd.Stderr = nil, nil
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var out []byte
	for !bytes.Contains(out, []byte("=== RUN   TestCluster/out-of-time")) {
		chunk := make([]byte, 4096)
		n, err := pipe.Read(chunk)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		out = append(out, chunk[:n]...)
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	rest, err := io.ReadAll(pipe)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Errorf("the interrupted process succeeded")
	}
	text := string(append(out, rest...))
	for _, want := range []string{"out of time: interrupt", "cleaned up", "interrupted before ", "0 passed, 1 failed"} {
		if !strings.Contains(text, want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "TestCluster/after") {
		t.Errorf("a scenario started after the interrupt:\n%s", text)
	}
	if _, err := os.Stat(filepath.Join(dir, "failed")); err == nil {
		t.Errorf("there are artefacts or names of an interrupted run")
	}
}

// TestTable checks that each scenario can be selected and has a name that fits into that of its
// namespace.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range table {
		if seen[s.name] {
			t.Errorf("two scenarios are called %s", s.name)
		}
		seen[s.name] = true
		if len(s.name) > 40 || s.about == "" || s.run == nil {
			t.Errorf("%s: long name, no description or nothing to run", s.name)
		}
		for _, i := range s.nodes {
			if i < 1 || i > 3 {
				t.Errorf("%s: no test runs scenarios of node %d", s.name, i)
			}
		}
	}
}

// TestGroups checks that each scenario belongs to one group in clusters of any size.
func TestGroups(t *testing.T) {
	for nodes := 1; nodes <= 4; nodes++ {
		s := suite{nodes: nodes}
		for _, sc := range table {
			groups := 0
			for i := range 4 {
				if s.inGroup(sc, i) {
					groups++
				}
			}
			if groups != 1 {
				t.Errorf("%d nodes: %s is in %d groups", nodes, sc.name, groups)
			}
		}
	}
}

// between returns the text between two words, or "".
func between(text, from, to string) string {
	_, rest, _ := strings.Cut(text, from)
	found, _, _ := strings.Cut(rest, to)
	return found
}
