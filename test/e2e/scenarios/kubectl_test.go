package scenarios

import (
	"os/exec"
	"strings"
)

// Kubectl runs kubectl in the scenario's namespace and returns its output. If kubectl fails,
// the scenario ends.
func (t *Test) Kubectl(args ...string) string { return t.KubectlWith("", args...) }

// KubectlWith is Kubectl with a standard input.
func (t *Test) KubectlWith(stdin string, args ...string) string {
	out, err := t.kubectl(stdin, args...)
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// kubectl runs kubectl with a standard input, and returns standard output and error, which has the
// warnings.
func (t *Test) kubectl(stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(t.Ctx, t.Cluster.Kubectl(),
		append([]string{"--kubeconfig=" + t.Cluster.Kubeconfig(), "--namespace=" + t.NS}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Apply applies a manifest as a user would, and returns kubectl's output with warnings. Its objects
// are deleted with the scenario.
func (t *Test) Apply(manifest string) string {
	t.Cleanup(func() {
		t.KubectlWith(manifest, "delete", "--ignore-not-found", "--wait=false", "-f", "-")
		t.Clear()
	})
	return t.KubectlWith(manifest, "apply", "-f", "-")
}

// Refused applies a manifest that must be rejected with a message that has all these words, and
// returns the message.
func (t *Test) Refused(manifest string, words ...string) string {
	out, err := t.kubectl(manifest, "apply", "-f", "-")
	if err == nil {
		t.kubectl(manifest, "delete", "--ignore-not-found", "--wait=false", "-f", "-")
		t.Fatalf("it was not rejected: %s", out)
	}
	if !containsAll(out, words) {
		t.Fatalf("rejected, but not with %q: %s", words, out)
	}
	return strings.TrimSpace(out)
}
