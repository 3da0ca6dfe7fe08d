package store

import (
	"context"
	"errors"
	"slices"
	"syscall"
	"testing"
)

// pauses is a Pause that records what it is asked, and whether the lock is free then.
type pauses struct {
	t     *testing.T
	lock  string
	waits bool   // what Wait returns
	over  []bool // what Over returns
	asked []string
}

func (p *pauses) Wait(context.Context) bool {
	p.ask("wait")
	return p.waits
}

func (p *pauses) Over() bool {
	p.ask("over")
	is := p.over[0]
	p.over = p.over[1:]
	return is
}

func (p *pauses) ask(what string) {
	f, err := openLock(p.lock)
	if err != nil {
		p.t.Fatal(err)
	}
	defer f.Close()
	if flockEINTR(f, lockExclusive|syscall.LOCK_NB) != nil {
		what += ", locked"
	}
	p.asked = append(p.asked, what)
}

// A process waits for its processor time without the lock, and releases the lock if its time was
// used up while it waited for it.
func TestPauseBeforeTheLock(t *testing.T) {
	s := New(Dirs{State: t.TempDir(), Run: t.TempDir()})
	ran := 0
	fn := func(tx *Tx) error { ran++; return tx.Count("n", 1) }
	if err := s.Update(context.Background(), Options{}, fn); err != nil {
		t.Fatal(err)
	}
	const wait, over = "wait", "over, locked"
	for _, tc := range []struct {
		name  string
		waits bool
		over  []bool
		want  []string
	}{
		{"enough", true, []bool{true}, []string{wait, over}},
		{"used up once", true, []bool{false, true}, []string{wait, over, wait, over}},
		{"used up always", true, []bool{false, false, false}, []string{wait, over, wait, over, wait, over}},
		{"waited for too long", false, nil, []string{wait}},
	} {
		for name, call := range map[string]func(context.Context) error{
			"Update": func(ctx context.Context) error { return s.Update(ctx, Options{}, fn) },
			"View": func(ctx context.Context) error {
				return s.View(ctx, func(*Tx) error { ran++; return nil })
			},
		} {
			p := &pauses{t: t, lock: s.lock(), waits: tc.waits, over: slices.Clone(tc.over)}
			s.Pause, ran = p, 0
			if err := call(context.Background()); err != nil || ran != 1 {
				t.Errorf("%s, %s: ran %d times, %v", name, tc.name, ran, err)
			}
			if !slices.Equal(p.asked, tc.want) {
				t.Errorf("%s, %s: %v, want %v", name, tc.name, p.asked, tc.want)
			}
			if err := s.Update(context.Background(), Options{Unpaused: true}, fn); err != nil {
				t.Error(err)
			}
			if len(p.asked) != len(tc.want) {
				t.Errorf("%s, %s: asked although there is no pause", name, tc.name)
			}
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	lock, err := acquire(context.Background(), s.lock(), lockExclusive)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	s.Pause = &pauses{t: t, lock: s.lock()}
	if err := s.Update(ctx, Options{}, fn); !errors.Is(err, ErrBusy) {
		t.Errorf("the lock is busy: %v", err)
	}
}
