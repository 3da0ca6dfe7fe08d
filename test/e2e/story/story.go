// Package story runs end-to-end scenarios and reports their results.
package story

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"time"
)

// Scenario is one end-to-end test.
type Scenario struct {
	Name  string
	About string
	// Keeps marks a scenario that requires retention: with a plugin without retention its outcome
	// must be Lost.
	Keeps bool
	Run   func(*T)
}

// Outcome is how a scenario ended.
type Outcome int

// The outcomes. Lost: an address was not kept; Broken: anything else went wrong.
const (
	Passed Outcome = iota
	Lost
	Broken
)

// Result is the result of a scenario.
type Result struct {
	Scenario Scenario
	Outcome  Outcome
	Text     string
	Took     time.Duration
	Tidying  time.Duration // duration of the cleanups
	Untidy   bool          // a cleanup failed
}

// T is a running scenario.
type T struct {
	Ctx context.Context

	began    time.Time
	outcome  Outcome
	text     string
	cleanups []func()
	print    func(string)
}

// Step logs a step of the scenario.
func (t *T) Step(format string, args ...any) {
	t.print(fmt.Sprintf("  %5.1fs  %s", time.Since(t.began).Seconds(), fmt.Sprintf(format, args...)))
}

// Fatalf ends the scenario with the outcome Broken.
func (t *T) Fatalf(format string, args ...any) { t.end(Broken, fmt.Sprintf(format, args...)) }

// Lostf ends the scenario with the outcome Lost.
func (t *T) Lostf(format string, args ...any) { t.end(Lost, fmt.Sprintf(format, args...)) }

// Must ends the scenario with the outcome Broken if err is not nil.
func (t *T) Must(err error) {
	if err != nil {
		_, file, line, _ := runtime.Caller(1)
		t.Fatalf("%s:%d: %v", file[strings.LastIndexByte(file, '/')+1:], line, err)
	}
}

func (t *T) end(o Outcome, text string) {
	t.outcome, t.text = o, text
	runtime.Goexit()
}

// Cleanup registers a function to call after the scenario, even if it failed. The last one is
// called first.
func (t *T) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

// Eventually calls f until it succeeds. After the limit it ends the scenario.
func (t *T) Eventually(limit time.Duration, what string, f func() error) {
	end := time.Now().Add(limit)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) || t.Ctx.Err() != nil {
			t.Fatalf("%s: timed out after %v: %v", what, limit, err)
		}
		t.Sleep(200 * time.Millisecond)
	}
}

// Sleep waits. It ends the scenario when its context is done.
func (t *T) Sleep(d time.Duration) {
	select {
	case <-t.Ctx.Done():
		t.Fatalf("out of time: %v", context.Cause(t.Ctx))
	case <-time.After(d):
	}
}

// Run runs one scenario. failed is called before the cleanups if it did not pass.
func Run(ctx context.Context, s Scenario, limit time.Duration, print func(string), failed func(*T, Outcome)) Result {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	t := &T{Ctx: bounded, began: time.Now(), print: print}
	inOwnGoroutine(t, func() { s.Run(t) })
	if t.outcome != Passed {
		print(fmt.Sprintf("  %5.1fs  %s", time.Since(t.began).Seconds(), t.text))
		// The context of the scenario may be done.
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		t.Ctx = late
		failed(t, t.outcome)
	}
	result := Result{Scenario: s, Outcome: t.outcome, Text: t.text, Took: time.Since(t.began)}
	for i := len(t.cleanups) - 1; i >= 0; i-- {
		tidy, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
		t.Ctx, t.outcome = tidy, Passed
		inOwnGoroutine(t, t.cleanups[i])
		cancel()
		if t.outcome == Passed {
			continue
		}
		result.Untidy = true
		if result.Outcome == Passed {
			result.Outcome, result.Text = Broken, "cleanup: "+t.text
		}
	}
	result.Tidying = time.Since(t.began) - result.Took
	return result
}

// inOwnGoroutine calls f in a goroutine that f may end with runtime.Goexit. A panic sets the
// outcome Broken.
func inOwnGoroutine(t *T, f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				t.outcome, t.text = Broken, fmt.Sprintf("panic: %v", p)
			}
		}()
		f()
	}()
	<-done
}
