package main

import (
	"bytes"
	"strings"
	"testing"
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
		{"--help", 0, "--cni-max-conf-num int", ""},
		{"--no-such-flag", exitUsage, "", "unknown flag: --no-such-flag"},
		{"stray", exitUsage, "", `unknown command "stray"`},
		{"", exitUsage, "", "--node-name is not set"},
		{"--node-name", exitUsage, "", "flag needs an argument"},
		{"--no-kube --move-grace=9s", exitUsage, "", "--move-grace 9s is too short"},
		{"--no-kube --move-grace=9", exitUsage, "", `invalid argument "9" for "--move-grace"`},
		{"--no-kube --forever-limit=-1s", exitUsage, "", "--forever-limit -1s is invalid"},
		{"--no-kube --cni-bin-dir=bin", exitUsage, "", `directory "bin"`},
		{"--no-kube --cni-max-conf-num=-1", exitUsage, "", "--cni-max-conf-num -1 is invalid"},
		{"--no-kube --log-level=loud", exitUsage, "", `invalid argument "loud" for "--log-level"`},
		{"--no-kube --log-format=xml", exitUsage, "", `want "text" or "json"`},
		{"--node-name=n --kubeconfig=/no/such/file", exitFailed, "", "no such file or directory"},
	} {
		var stdout, stderr bytes.Buffer
		code := execute(t.Context(), append([]string{}, strings.Fields(c.args)...), &stdout, &stderr)
		if code != c.code || !strings.Contains(stdout.String(), c.stdout) ||
			!strings.Contains(stderr.String(), c.stderr) || (c.stdout == "") != (stdout.Len() == 0) ||
			(c.stderr == "") != (stderr.Len() == 0) {
			t.Errorf("%q: exit status %d, %q, %q; want %d, %q, %q", c.args, code, &stdout, &stderr, c.code, c.stdout,
				c.stderr)
		}
	}
}
