package notify

import "testing"

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
