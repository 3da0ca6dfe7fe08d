package notify

import (
	"context"
	"testing"
	"time"
)

func TestSendWakesEachSubscriberOnce(t *testing.T) {
	var s Signal
	s.Send() // without subscribers
	a, b := s.Subscribe(), s.Subscribe()
	for range 3 {
		s.Send()
	}
	for name, c := range map[string]<-chan struct{}{"a": a, "b": b} {
		if len(c) != 1 {
			t.Errorf("%s has %d values, want 1", name, len(c))
		}
		<-c
	}
	s.Send()
	if len(a) != 1 || len(b) != 1 {
		t.Error("not woken again")
	}
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
