package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/daemon"
	"github.com/leasehold-cni/leasehold/test/check"
)

// TestArguments runs the program with command lines with which no agent starts.
func TestArguments(t *testing.T) {
	t.Setenv("NODE_NAME", "")
	for _, c := range []struct {
		args           string
		code           int
		stdout, stderr string
	}{
		{"--version", 0, "leasehold-agent (devel)\n", ""},
		{"--help", 0, "--cni-bin-dir string", ""},
		{"--no-such-flag", daemon.ExitUsage, "", "unknown flag: --no-such-flag"},
		{"stray", daemon.ExitUsage, "", `unknown command "stray"`},
		{"", daemon.ExitUsage, "", "--node-name is not set"},
		{"--node-name", daemon.ExitUsage, "", "flag needs an argument"},
		{"--no-kube --move-grace=9s", daemon.ExitUsage, "", "--move-grace 9s is too short"},
		{"--no-kube --move-grace=9", daemon.ExitUsage, "", `invalid argument "9" for "--move-grace"`},
		{"--no-kube --forever-limit=-1s", daemon.ExitUsage, "", "--forever-limit -1s is invalid"},
		{"--no-kube --cni-bin-dir=bin", daemon.ExitUsage, "", `directory "bin"`},
		{"--no-kube --log-level=loud", daemon.ExitUsage, "", `invalid argument "loud" for "--log-level"`},
		{"--no-kube --log-format=xml", daemon.ExitUsage, "", `want "text" or "json"`},
		{"--node-name=n --kubeconfig=/no/such/file", daemon.ExitFailed, "", "no such file or directory"},
	} {
		var stdout, stderr bytes.Buffer
		code := execute(t.Context(), append([]string{}, strings.Fields(c.args)...), &stdout, &stderr)
		check.Equal(t, code, c.code, c.args, &stderr)
		check.Contains(t, stdout.String(), c.stdout, c.args)
		check.Contains(t, stderr.String(), c.stderr, c.args)
		check.Equal(t, stdout.Len() == 0, c.stdout == "", c.args, &stdout)
		check.Equal(t, stderr.Len() == 0, c.stderr == "", c.args, &stderr)
	}
}
