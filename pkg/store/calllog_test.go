package store

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
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

func TestTiming(t *testing.T) {
	s := open(t)
	update(t, s, func(tx *Tx) error { return tx.BeginBoot("b") })
	var got []Timing
	s.Timed = func(t Timing) { got = append(got, t) }
	const pause = 3 * time.Millisecond
	calls := map[string]func(context.Context, func(*Tx) error) error{
		"Update": func(ctx context.Context, fn func(*Tx) error) error { return s.Update(ctx, Options{}, fn) },
		"View":   s.View,
	}
	for name, call := range calls {
		got = nil
		err := call(t.Context(), func(*Tx) error { time.Sleep(pause); return nil })
		if err != nil || len(got) != 1 || got[0].Held < pause {
			t.Errorf("%s: %v; %v", name, err, got)
		}
		other := New(s.dirs)
		locked, release := make(chan struct{}), make(chan struct{})
		go other.Update(context.Background(), Options{}, func(*Tx) error { close(locked); <-release; return nil })
		<-locked
		time.AfterFunc(pause, func() { close(release) })
		if err := call(t.Context(), func(*Tx) error { return nil }); err != nil || got[1].Waited == 0 {
			t.Errorf("%s of a busy store: %v; %v", name, err, got)
		}
		update(t, other, func(*Tx) error {
			ctx, cancel := context.WithTimeout(t.Context(), pause)
			defer cancel()
			err := call(ctx, func(*Tx) error { return nil })
			if !errors.Is(err, ErrBusy) || len(got) != 3 || got[2].Waited == 0 || got[2].Held != 0 {
				t.Errorf("%s that does not get the lock: %v, %v", name, err, got)
			}
			return nil
		})
	}
}

// Nothing is written to what is not a regular file, even if somebody reads it.
func TestCallLogThatIsAFIFO(t *testing.T) {
	s := open(t)
	if err := errors.Join(os.MkdirAll(s.dirs.Run, 0o700), syscall.Mkfifo(s.callLogPath(), 0o600)); err != nil {
		t.Fatal(err)
	}
	reader, err := syscall.Open(s.callLogPath(), syscall.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(reader)
	s.LogCall(Call{Verb: "ADD", Result: "ok"})
	b := make([]byte, 100)
	if n, err := syscall.Read(reader, b); n > 0 {
		t.Errorf("read %q, %v", b[:n], err)
	}
}
