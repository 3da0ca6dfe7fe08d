package daemon

import (
	"context"
	"log/slog"
)

// Problem is the last problem of a task that was logged. The zero value means that there is none.
type Problem struct{ text string }

// Log logs a problem when it occurs first, when it changes, and when it is over. err is nil if
// there is no problem now.
func (p *Problem) Log(log *slog.Logger, level slog.Level, what string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
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
