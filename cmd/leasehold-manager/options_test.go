package main

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/test/check"
)

// parse returns the options with which a command line runs the manager, and the output. The options
// are nil if it does not run.
func parse(args ...string) (ran *options, code int, stdout, stderr string) {
	var out, log bytes.Buffer
	code = execute(context.Background(), func(_ context.Context, o options, _ *slog.Logger) error {
		ran = &o
		return nil
	}, args, &out, &log)
	return ran, code, out.String(), log.String()
}

func TestParse(t *testing.T) {
	o, code, _, stderr := parse([]string{}...)
	if code != 0 || o.pin.Mode != "require" || !slices.Equal(o.pin.Schedulers, []string{"default-scheduler"}) ||
		len(o.pin.Kinds) != 2 || o.webhookPort != 9443 || o.metricsAddr != ":9471" || o.pprofAddr != "" {
		t.Errorf("defaults: %+v, %d, %s", o, code, stderr)
	}
	o, code, _, stderr = parse("--kubeconfig=k", "--pin-mode", "prefer", "--schedulers=a,b",
		"--pin-kinds=Database.example.com,Pods", "--log-level=debug", "--log-format=json")
	if code != 0 || o.kubeconfig != "k" || o.pin.Mode != "prefer" ||
		!slices.Equal(o.pin.Schedulers, []string{"a", "b"}) ||
		!slices.Equal(o.pin.Kinds, []schema.GroupKind{{Group: "example.com", Kind: "Database"}, {Kind: "Pods"}}) {
		t.Errorf("all of them: %+v, %d, %s", o, code, stderr)
	}
	o, code, _, stderr = parse("--schedulers=a, b,", "--pin-kinds=")
	if code != 0 || !slices.Equal(o.pin.Schedulers, []string{"a", "b"}) || len(o.pin.Kinds) > 0 {
		t.Errorf("spaces, and no kind: %+v, %d, %s", o, code, stderr)
	}
	if o, code, stdout, _ := parse("--version"); o != nil || code != 0 || stdout != "leasehold-manager (devel)\n" {
		t.Errorf("--version: %+v, %d, %q", o, code, stdout)
	}
	for args, want := range map[string]string{
		"--pin-mode=must":  `want "require", "prefer" or "none"`,
		"--log-format=xml": `want "text" or "json"`,
		"--no-such-flag":   "unknown flag: --no-such-flag",
		"stray":            `unknown command "stray"`,
	} {
		o, code, stdout, stderr := parse(strings.Fields(args)...)
		if o != nil || code != daemon.ExitUsage || stdout != "" || !strings.Contains(stderr, want) ||
			!strings.Contains(stderr, "Try 'leasehold-manager --help'") {
			t.Errorf("%s: %d, %q, %q; want ...%s...", args, code, stdout, stderr, want)
		}
	}
	o, code, stdout, stderr := parse("-h")
	if o != nil || code != 0 || stderr != "" || !strings.Contains(stdout, "--pin-mode") {
		t.Errorf("help: %d, %q\n%s", code, stderr, stdout)
	}
}

// TestFailure has the manager fail: that is not an error in the arguments.
func TestFailure(t *testing.T) {
	var stdout, stderr bytes.Buffer
	code := execute(t.Context(), run, []string{"--kubeconfig=/no/such/file"}, &stdout, &stderr)
	check.Equal(t, code, daemon.ExitFailed, "exit status")
	check.Contains(t, stderr.String(), "no such file or directory")
}
