// Package background waits for what programs and goroutines do in the background of a test, and
// collects what they print.
package background

import (
	"bytes"
	"sync"
	"testing"
	"time"
)

// A Log may be read while it is written.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Until waits until a condition is true.
func Until(t testing.TB, what string, is func() bool) {
	t.Helper()
	Eventually(t, func() string {
		if is() {
			return ""
		}
		return "not yet: " + what
	})
}

// Eventually waits until wrong returns "". The time is for a machine that is busy with other work.
func Eventually(t testing.TB, wrong func() string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		last := wrong()
		if last == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatal(last)
		}
	}
}
