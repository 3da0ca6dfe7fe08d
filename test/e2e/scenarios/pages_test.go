package scenarios

import (
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A page is a document that ends with kept addresses. A scenario runs its commands of kubectl.
type page struct {
	file, section string // the whole file, if there is no heading of a section
	// fill replaces what a reader fills in, and the manifest by one of images the cluster has.
	fill []string
	set  *Set // whose pods it restarts
	// after is called after each command. It may be nil.
	after func(command string, called time.Time)
}

// follow runs the commands of a page in the test's namespace. The page waits for the pods of its
// example twice, and they keep their addresses.
func (t *Test) follow(p page) {
	config := filepath.Join(t.TempDir(), "kubeconfig")
	t.Must(os.WriteFile(config, []byte(t.Kubectl("config", "view", "--raw", "--flatten")), 0o600))
	t.Kubectl("config", "set-context", "--current", "--kubeconfig="+config, "--namespace="+t.NS)
	var rollouts []Pods
	began := time.Now()
	for _, line := range t.indented(p.file, p.section) {
		command := strings.NewReplacer(p.fill...).Replace(strings.TrimSpace(line))
		if !strings.HasPrefix(command, "kubectl ") {
			continue
		}
		t.Step("$ %s", command)
		called := time.Now()
		out, err := t.shell(t.Cluster.Repo, "export KUBECONFIG="+config+"; "+command)
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		if p.after != nil {
			p.after(command, called)
		}
		switch {
		case strings.HasPrefix(command, "kubectl rollout status"):
			rollouts = append(rollouts, p.set.Ready())
		case strings.HasPrefix(command, "kubectl get ipr"):
			t.Step("it prints\n%s", out)
		}
	}
	if len(rollouts) != 2 {
		t.Fatalf("%s waits for the pods of %s %d times, want two", p.file, p.set.Name, len(rollouts))
	}
	for name, pod := range rollouts[0] {
		if rollouts[1][name].UID == pod.UID {
			t.Errorf("%s was not replaced", name)
		}
	}
	t.Kept(rollouts[0], rollouts[1])
	t.Step("%s took %.1f s, from the first command to kept addresses", p.file, time.Since(began).Seconds())
}

// indented returns the indented lines of a document or, with a heading, of a section.
func (t *Test) indented(file, heading string) (lines []string) {
	content, err := os.ReadFile(filepath.Join(t.Cluster.Repo, file))
	t.Must(err)
	text := string(content)
	if heading != "" {
		_, section, found := strings.Cut(text, "\n"+heading+"\n")
		if !found {
			t.Fatalf("%s has no section %q", file, heading)
		}
		level, _, _ := strings.Cut(heading, " ")
		text, _, _ = strings.Cut(section, "\n"+level+" ")
	}
	for line := range strings.Lines(text) {
		if line, ok := strings.CutPrefix(line, "    "); ok {
			lines = append(lines, line)
		}
	}
	return lines
}
