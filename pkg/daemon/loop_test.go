package daemon

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasehold-cni/leasehold/test/check"
)

func TestSendWakesEachSubscriberOnce(t *testing.T) {
	var s Signal
	s.Send() // without subscribers
	a, b := Any(&s), Any(&s)
	for range 3 {
		s.Send()
	}
	for name, c := range map[string]<-chan struct{}{"a": a, "b": b} {
		check.Equal(t, len(c), 1, "values of", name)
		<-c
	}
	s.Send()
	check.Equal(t, len(a), 1, "woken again")
	check.Equal(t, len(b), 1, "woken again")
}

func TestWait(t *testing.T) {
	wake := make(chan struct{}, 1)
	wake <- struct{}{}
	if !Wait(t.Context(), wake, time.Hour) {
		t.Error("not woken")
	}
	if !Wait(t.Context(), nil, time.Nanosecond) || !Wait(t.Context(), wake, -time.Hour) {
		t.Error("the time has not elapsed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wake <- struct{}{}
	if Wait(ctx, nil, time.Hour) || Wait(ctx, wake, time.Hour) {
		t.Error("waited although the context is done")
	}
}

func TestLoopMergesBursts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		var a, b Signal
		began, passes := time.Now(), []time.Duration{}
		done := make(chan error)
		wake := Any(&a, &b)
		go func() {
			done <- Loop(ctx, time.Second, wake, func(context.Context) time.Duration {
				passes = append(passes, time.Since(began))
				if len(passes) == 2 {
					return time.Minute
				}
				return 0
			})
		}()
		time.Sleep(10 * time.Second)
		for range 10 { // a burst of 3 s, in which no signal comes at the moment of a later pass
			a.Send()
			b.Send()
			time.Sleep(300 * time.Millisecond)
		}
		time.Sleep(2 * time.Minute)
		stop()
		if err := <-done; err == nil {
			t.Error("Loop returned no error")
		}
		want := []time.Duration{0, 10 * time.Second, 11 * time.Second, 12 * time.Second, 13 * time.Second}
		check.Slices(t, passes, want, "passes at")
	})
}
