package main

import (
	"log/slog"

	"github.com/go-logr/logr"
)

// logger returns the logger of the whole process.
func logger(o options) logr.Logger {
	options := &slog.HandlerOptions{Level: o.logLevel, ReplaceAttr: plainError}
	if o.logJSON {
		return logr.FromSlogHandler(slog.NewJSONHandler(o.logTo, options))
	}
	return logr.FromSlogHandler(slog.NewTextHandler(o.logTo, options))
}

// plainError has an error printed as its text: some errors would print a stack trace.
func plainError(_ []string, a slog.Attr) slog.Attr {
	if err, ok := a.Value.Any().(error); ok {
		a.Value = slog.StringValue(err.Error())
	}
	return a
}
