package main

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func TestParse(t *testing.T) {
	var out bytes.Buffer
	o, err := parse(nil, &out)
	if err != nil || o.liftGatesOnly || o.pin.Mode != "nominate" || o.pin.Fallback != "prefer" ||
		o.pin.RequireTimeout != 5*time.Minute ||
		!slices.Equal(o.pin.Schedulers, []string{"default-scheduler"}) || o.webhookPort != 9443 ||
		o.metricsAddr != ":9471" || o.pprofAddr != "" {
		t.Errorf("defaults: %+v, %v", o, err)
	}
	o, err = parse([]string{"lift-gates", "--kubeconfig=k", "--pin-mode", "require", "--fallback-pin-mode=none",
		"--schedulers=a,b", "--require-timeout=10s", "--log-level=debug", "--log-format=json"}, &out)
	if err != nil || !o.liftGatesOnly || o.kubeconfig != "k" || o.pin.Mode != "require" || o.pin.Fallback != "none" ||
		!slices.Equal(o.pin.Schedulers, []string{"a", "b"}) || o.pin.RequireTimeout != 10*time.Second ||
		o.logLevel != slog.LevelDebug || !o.logJSON {
		t.Errorf("all of them: %+v, %v", o, err)
	}
	if o, err := parse([]string{"--version"}, &out); err != nil || !o.version {
		t.Errorf("--version: %+v, %v", o, err)
	}
	for arg, want := range map[string]string{
		"--pin-mode=must":              `want "nominate", "require", "prefer" or "none"`,
		"--fallback-pin-mode=nominate": "want require, prefer or none",
		"--require-timeout=-1s":        "want at least 0s",
		"--require-timeout=1":          "require-timeout",
		"--log-format=xml":             `want "text" or "json"`,
		"--no-such-flag":               "no-such-flag",
		"stray":                        `unexpected argument "stray"`,
	} {
		if _, err := parse([]string{arg}, &out); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want ...%s...", arg, err, want)
		}
	}
	if out.Len() > 0 {
		t.Errorf("it wrote %q by itself", &out)
	}
	if _, err := parse([]string{"-h"}, &out); !errors.Is(err, pflag.ErrHelp) ||
		!strings.Contains(out.String(), "lift-gates") ||
		!strings.Contains(out.String(), "-require-timeout") {
		t.Errorf("help: %v\n%s", err, &out)
	}
}
