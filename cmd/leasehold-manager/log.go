package main

import (
	"context"
	"log/slog"
	"strings"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// logger returns the logger of the whole process.
func logger(o options) logr.Logger {
	options := &slog.HandlerOptions{Level: o.logLevel, ReplaceAttr: plainError}
	handler := slog.Handler(slog.NewTextHandler(o.logTo, options))
	if o.logJSON {
		handler = slog.NewJSONHandler(o.logTo, options)
	}
	return logr.FromSlogHandler(raceHandler{handler})
}

// plainError has an error printed as its text: some errors would print a stack trace.
func plainError(_ []string, a slog.Attr) slog.Attr {
	if err, ok := a.Value.Any().(error); ok {
		a.Value = slog.StringValue(err.Error())
	}
	return a
}

// A raceHandler logs errors that say no more than that another replica was faster as information:
// the write is tried again. At every first start the replicas race for the certificate.
type raceHandler struct{ slog.Handler }

// Handle implements slog.Handler.
func (h raceHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok && isRace(err) && r.Level > slog.LevelInfo {
			r.Level = slog.LevelInfo
		}
		return true
	})
	if !h.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h raceHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return raceHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h raceHandler) WithGroup(name string) slog.Handler {
	return raceHandler{h.Handler.WithGroup(name)}
}

// isRace reports whether an error is a conflict, or cert-controller's look at the Secret that
// another replica is about to fill.
func isRace(err error) bool {
	return apierrors.IsConflict(err) || strings.HasPrefix(err.Error(), "Cert secret is not well-formed, missing ")
}
