package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"
)

// Exit codes.
const (
	ExitFailed = 1 // it could not start, or failed; standard error has the reason
	ExitUsage  = 2 // invalid arguments or flags
)

// errFailed is returned by the command if the program has failed, after the reason was logged. All
// other errors of the command are about its arguments and flags.
var errFailed = errors.New("failed")

// Execute runs a program with the given arguments, and returns its exit code. c has its name, its
// texts and its flags, to which Execute adds those of the log. PreRunE may check their values. run
// is the program.
func Execute(
	ctx context.Context, c *cobra.Command, run func(context.Context, *slog.Logger) error, args []string,
	stdout, stderr io.Writer,
) int {
	var level slog.Level
	isJSON := false
	c.Flags().TextVar(&level, "log-level", slog.LevelInfo, "debug, info, warn or error")
	c.Flags().Func("log-format", "text or json (default text)", func(s string) error {
		if s != "text" && s != "json" {
			return errors.New(`want "text" or "json"`)
		}
		isJSON = s == "json"
		return nil
	})
	c.Args, c.SilenceUsage, c.SilenceErrors = cobra.NoArgs, true, true
	c.SetVersionTemplate("{{.Name}} {{.Version}}\n")
	c.RunE = func(c *cobra.Command, _ []string) error {
		log := newLog(stderr, level, isJSON)
		if err := run(c.Context(), log); err != nil {
			log.Error(c.Name()+" failed", "error", err)
			return errFailed
		}
		return nil
	}
	c.SetArgs(args)
	c.SetOut(stdout)
	c.SetErr(stderr)
	switch err := c.ExecuteContext(ctx); {
	case err == nil:
		return 0
	case errors.Is(err, errFailed):
		return ExitFailed
	default:
		fmt.Fprintf(stderr, "%s: %v\nTry '%s --help'.\n", c.Name(), err, c.Name())
		return ExitUsage
	}
}

func newLog(w io.Writer, level slog.Level, isJSON bool) *slog.Logger {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: plainError}
	if isJSON {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// plainError has an error printed as its text: some errors would print a stack trace.
func plainError(_ []string, a slog.Attr) slog.Attr {
	if err, ok := a.Value.Any().(error); ok {
		a.Value = slog.StringValue(err.Error())
	}
	return a
}
