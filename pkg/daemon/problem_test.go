package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestProblem logs the problem of each pass of a task: when it begins, when it changes, and when it
// is over, and so again when it comes back.
func TestProblem(t *testing.T) {
	full, busy := errors.New("the disk is full"), errors.New("it is busy")
	isFull, isBusy := "level=WARN msg=\"saving failed\" error=\"the disk is full\"\n",
		"level=WARN msg=\"saving failed\" error=\"it is busy\"\n"
	over := "level=INFO msg=\"saving works again\"\n"
	p := Problem{Failing: prometheus.NewGauge(prometheus.GaugeOpts{Name: "failing"})}
	for i, pass := range []struct {
		err    error
		logged string
	}{
		{nil, ""}, {full, isFull}, {full, ""}, {busy, isBusy}, {full, isFull}, {nil, over}, {nil, ""}, {full, isFull},
	} {
		var out bytes.Buffer
		withoutTime := func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
		log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
		p.Log(log, slog.LevelWarn, "saving", pass.err)
		if out.String() != pass.logged || (testutil.ToFloat64(p.Failing) == 1) != (pass.err != nil) {
			t.Errorf("pass %d, %v: logged %q, want %q; the metric is %v", i, pass.err, out.String(), pass.logged,
				testutil.ToFloat64(p.Failing))
		}
	}
}
