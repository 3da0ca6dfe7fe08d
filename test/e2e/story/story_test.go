package story

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func run(s Scenario, limit time.Duration) (Result, bool) {
	collected := false
	r := Run(context.Background(), s, limit, func(string) {}, func(*T, Outcome) { collected = true })
	return r, collected
}

func TestRun(t *testing.T) {
	tests := []struct {
		name string
		run  func(*T)
		want Outcome
		text string
	}{
		{"nothing wrong", func(*T) {}, Passed, ""},
		{"fatal", func(t *T) { t.Fatalf("no %s", "pod") }, Broken, "no pod"},
		{"error", func(t *T) { t.Must(errors.New("refused")) }, Broken, "refused"},
		{"lost", func(t *T) { t.Lostf("10.0.0.1 became 10.0.0.2") }, Lost, "became"},
		{"panic", func(*T) { panic("nil map") }, Broken, "nil map"},
		{"never", func(t *T) {
			t.Eventually(time.Millisecond, "a pod", func() error { return errors.New("pending") })
		}, Broken, "pending"},
		{"out of time", func(t *T) { t.Sleep(time.Hour) }, Broken, "out of time"},
		{"cleanup fails", func(t *T) { t.Cleanup(func() { t.Must(errors.New("busy")) }) }, Broken, "cleanup: "},
		{"cleanup fails too", func(t *T) {
			t.Cleanup(func() { t.Must(errors.New("busy")) })
			t.Lostf("lost")
		}, Lost, "lost"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, collected := run(Scenario{Run: tt.run}, 300*time.Millisecond)
			if r.Outcome != tt.want || !strings.Contains(r.Text, tt.text) {
				t.Errorf("got %d %q, want %d with %q", r.Outcome, r.Text, tt.want, tt.text)
			}
			if untidy := strings.HasPrefix(tt.name, "cleanup fails"); r.Untidy != untidy {
				t.Errorf("untidy: %v, want %v", r.Untidy, untidy)
			}
			if failedFirst := r.Outcome != Passed && !strings.HasPrefix(r.Text, "cleanup: "); collected != failedFirst {
				t.Errorf("logs collected: %v, want %v", collected, failedFirst)
			}
		})
	}
}

func TestCleanups(t *testing.T) {
	var order []string
	run(Scenario{Run: func(t *T) {
		t.Cleanup(func() { order = append(order, "first") })
		t.Cleanup(func() { order = append(order, "second") })
		t.Fatalf("no")
	}}, time.Second)
	if got := strings.Join(order, " "); got != "second first" {
		t.Errorf("cleanups ran as %q", got)
	}
}

func TestJudge(t *testing.T) {
	tests := []struct {
		pluginKeeps, scenarioKeeps bool
		outcome                    Outcome
		good                       bool
		text                       string
	}{
		{true, true, Passed, true, "passed"},
		{true, true, Lost, false, "ADDRESS LOST"},
		{true, true, Broken, false, "FAILED"},
		{true, false, Passed, true, "passed"},
		{true, false, Lost, false, "ADDRESS LOST"},
		{true, false, Broken, false, "FAILED"},
		{false, true, Passed, false, "PASSED, NOT EXPECTED"},
		{false, true, Lost, true, "expected failure"},
		{false, true, Broken, false, "FAILED"},
		{false, false, Passed, true, "passed"},
		{false, false, Lost, false, "ADDRESS LOST"},
		{false, false, Broken, false, "FAILED"},
	}
	for _, tt := range tests {
		good, text := Judge(Result{Scenario: Scenario{Keeps: tt.scenarioKeeps}, Outcome: tt.outcome}, tt.pluginKeeps)
		if good != tt.good || text != tt.text {
			t.Errorf("%+v: got %v %q", tt, good, text)
		}
	}
}

func TestSummarize(t *testing.T) {
	results := []Result{
		{Scenario: Scenario{Name: "recreate", Keeps: true}, Outcome: Lost, Text: "10.0.0.1 became 10.0.0.2"},
		{Scenario: Scenario{Name: "status"}, Outcome: Passed, Took: 1500 * time.Millisecond},
	}
	var out strings.Builder
	if !Summarize(&out, results, false, time.Minute) || !strings.HasSuffix(out.String(), "\n2 passed, 0 failed\n") {
		t.Errorf("host-local:\n%s", out.String())
	}
	out.Reset()
	if Summarize(&out, results, true, time.Minute) || !strings.HasSuffix(out.String(), "\n1 passed, 1 failed\n") {
		t.Errorf("leasehold:\n%s", out.String())
	}
	if !strings.Contains(out.String(), "10.0.0.1 became 10.0.0.2") {
		t.Errorf("the text of the failure is missing:\n%s", out.String())
	}
}
