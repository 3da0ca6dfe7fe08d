package daemon

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
)

// Problem is the last problem of a task that was logged. The zero value means that there is none.
type Problem struct {
	Failing prometheus.Gauge // 1 while there is a problem, otherwise 0; may be nil

	text string
}

// Log logs a problem when it occurs first, when it changes, and when it is over. err is nil if
// there is no problem now.
func (p *Problem) Log(log *slog.Logger, level slog.Level, what string, err error) {
	text, failing := "", 0.0
	if err != nil {
		text, failing = err.Error(), 1
	}
	if p.Failing != nil {
		p.Failing.Set(failing)
	}
	switch {
	case text == p.text:
	case text == "":
		log.Info(what + " works again")
	default:
		log.Log(context.Background(), level, what+" failed", "error", text)
	}
	p.text = text
}
