package scenarios

import (
	"os/exec"
	"strings"
)

// Kubectl runs kubectl in the scenario's namespace and returns what it wrote; that it fails ends the scenario.
func (w *World) Kubectl(args ...string) string {
	out, err := w.kubectl("", args...)
	if err != nil {
		w.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// kubectl gives kubectl something to read, and returns standard output and error together: warnings are on the latter.
func (w *World) kubectl(stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(w.Ctx, w.Bed.Kubectl(),
		append([]string{"--kubeconfig=" + w.Bed.Kubeconfig(), "--namespace=" + w.NS}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Apply applies a manifest as a user would, and returns what kubectl wrote, warnings with it. Its objects go with the
// scenario.
func (w *World) Apply(manifest string) string {
	out, err := w.kubectl(manifest, "apply", "-f", "-")
	w.Cleanup(func() {
		out, err := w.kubectl(manifest, "delete", "--ignore-not-found", "--wait=false", "-f", "-")
		if err != nil {
			w.Fatalf("kubectl delete: %v\n%s", err, out)
		}
		w.Clear()
	})
	if err != nil {
		w.Fatalf("kubectl apply: %v\n%s", err, out)
	}
	return out
}

// Refused applies a manifest that must be refused with a message that has all these words, and returns the message.
func (w *World) Refused(manifest string, words ...string) string {
	out, err := w.kubectl(manifest, "apply", "-f", "-")
	if err == nil {
		w.kubectl(manifest, "delete", "--ignore-not-found", "--wait=false", "-f", "-")
		w.Fatalf("it was not refused: %s", out)
	}
	for _, word := range words {
		if !strings.Contains(out, word) {
			w.Fatalf("refused, but nothing says %q: %s", word, out)
		}
	}
	return strings.TrimSpace(out)
}
