package store

import (
	"context"
	"os"
	"time"
)

// Timing is what one Update or View cost those who want the store as well.
type Timing struct {
	Waited time.Duration // for the lock
	Held   time.Duration // of the lock: from its grant until it is given back
}

type timingKey struct{}

// Measured makes every Update and View under the context tell what it cost,
// after it has given the lock back. Whoever asked before is told as well.
func Measured(ctx context.Context, tell func(Timing)) context.Context {
	if before, ok := ctx.Value(timingKey{}).(func(Timing)); ok {
		after := tell
		tell = func(t Timing) { before(t); after(t) }
	}
	return context.WithValue(ctx, timingKey{}, tell)
}

// held is the store's lock while a call has it.
type held struct {
	*os.File
	tell    func(Timing)
	asked   time.Time
	granted time.Time
}

func acquireTimed(ctx context.Context, path string, how int) (*held, error) {
	tell, _ := ctx.Value(timingKey{}).(func(Timing))
	asked := time.Now()
	f, err := acquire(ctx, path, how)
	if err != nil {
		if tell != nil {
			tell(Timing{Waited: time.Since(asked)})
		}
		return nil, err
	}
	return &held{File: f, tell: tell, asked: asked, granted: time.Now()}, nil
}

// Close gives the lock back.
func (h *held) Close() error {
	err := h.File.Close()
	if h.tell != nil {
		h.tell(Timing{Waited: h.granted.Sub(h.asked), Held: time.Since(h.granted)})
	}
	return err
}
