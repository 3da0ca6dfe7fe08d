package store

import (
	"os"
	"slices"
	"strings"

	"testing"
	"time"
)

func TestCallLog(t *testing.T) {
	s := open(t)
	add := Call{Verb: "ADD", Result: "ok", Took: 2 * time.Millisecond, Waited: time.Microsecond}
	del := Call{Verb: "DEL", Result: "11", Took: 10 * time.Second, Waited: 10 * time.Second}
	s.LogCall(add)
	if _, err := os.Stat(s.callLogPath()); err == nil {
		t.Error("written without a reader")
	}
	next := func(want ...Call) {
		t.Helper()
		if got, err := s.Calls(); err != nil || !slices.Equal(got, want) {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
	}
	next()
	s.LogCall(add)
	s.LogCall(del)
	next(add, del)
	next()
	if err := os.WriteFile(s.callLogPath(), make([]byte, maxCallLog+1), 0o600); err != nil {
		t.Fatal(err)
	}
	s.LogCall(add)
	if info, err := os.Stat(s.callLogPath()); err != nil || info.Size() != maxCallLog+1 {
		t.Errorf("a log that nobody reads: %v, %v", info, err)
	}
	next()
	s.LogCall(del)
	os.Remove(s.callLogPath())
	next()
	s.LogCall(add)
	next(add)
}

func FuzzCall(f *testing.F) {
	f.Add("ADD ok 2000 1\n")
	f.Add("DEL 11 10000000 10000000\n")
	f.Add("A\"D o{k 1 1\n")
	f.Fuzz(func(t *testing.T, line string) {
		c, ok := parseCall(line)
		if ok && (strings.Trim(c.Verb+c.Result,
			"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") != "" ||
			c.Took < 0 || c.Waited < 0) {
			t.Errorf("%q is %+v", line, c)
		}
	})
}
