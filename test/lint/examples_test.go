package lint

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// elsewhere are the commands of the documents that no script of test/script runs, by what runs
// them.
var elsewhere = []struct {
	file, text string   // the test that runs them, and a text in it; without a file the reason why none does
	commands   []string // as in the documents
}{
	{"", "Kruise's chart is not available to the tests", []string{
		"helm install kruise openkruise/kruise",
		"helm template kruise openkruise/kruise",
		"kubectl apply -f dist/leasehold-v0.1.0-replace.yaml -l 'app.kubernetes.io/name!=persistentpodstates'",
		"kubectl annotate crd persistentpodstates.apps.kruise.io meta.helm.sh/release-name=kruise " +
			"meta.helm.sh/release-namespace=default",
		"kubectl label crd persistentpodstates.apps.kruise.io app.kubernetes.io/managed-by=Helm --overwrite",
	}},
	{"test/e2e/scenarios/kruise_test.go", `"helm uninstall kruise\n"`, []string{
		"helm uninstall kruise",
	}},
	{"test/e2e/scenarios/release_test.go", `helm("install", "leasehold"`, []string{
		"helm install leasehold dist/leasehold-0.1.0.tgz --namespace leasehold-system --create-namespace " +
			"--set platform=replace",
	}},
	{"test/e2e/scenarios/install_test.go", `"daemonset/kube-flannel-ds")`, []string{
		"kubectl -n kube-flannel rollout restart daemonset/kube-flannel-ds",
	}},
	{"test/e2e/scenarios/nodepool_test.go", `"/leasectl", "--host-root=/proc/1/root"}`, []string{
		"kubectl -n leasehold-system exec $pod -c agent -- /leasectl --host-root=/proc/1/root list",
	}},
	{"test/e2e/scenarios/install_test.go", `readmeCommands("Quick start in a cluster")`, []string{
		"kubectl -n leasehold-system rollout status daemonset/leasehold-agent",
		"kubectl apply -f dist/leasehold-v0.1.0-replace.yaml",
		"kubectl create -f test/e2e/manifests/echoserver.yaml",
		"kubectl get ipr",
		"kubectl rollout restart statefulset/echoserver",
		"kubectl rollout status statefulset/echoserver",
		"kubectl -n leasehold-system rollout status deployment/leasehold-manager",
	}},
	{"", "it only prints", []string{
		"kubectl -n leasehold-system logs ds/leasehold-agent -c install",
		"kubectl get crd persistentpodstates.apps.kruise.io -o jsonpath='{.spec.versions[*].name}'",
		"kubectl get pod db-0 -o jsonpath='{.metadata.annotations}'",
	}},
	{"test/e2e/scenarios/kruise_test.go", `"### From Kruise to leasehold\n"`, []string{
		"kubectl apply -f dist/leasehold-v0.1.0-replace.yaml -l app.kubernetes.io/name=persistentpodstates",
		"kubectl apply -f pps.yaml",
		"kubectl get persistentpodstates.apps.kruise.io -A -o yaml > pps.all",
		"kubectl replace --subresource=status -f pps.yaml",
		"kubectl wait --for=condition=Established crd/persistentpodstates.apps.kruise.io",
	}},
	{"test/e2e/cluster/check.go", `"apply", "--validate=strict", "-k",`, []string{
		"kubectl apply -k daemonset/overlays/replace",
	}},
	{"test/e2e/scenarios/pin_test.go", `"delete", "mutatingwebhookconfiguration", cluster.Manager)`, []string{
		"kubectl delete mutatingwebhookconfiguration leasehold-manager",
	}},
	{"test/e2e/scenarios/pin_test.go", `"scale", "deployment", cluster.Manager, "--replicas=0")`, []string{
		"kubectl -n leasehold-system scale deployment leasehold-manager --replicas=0",
	}},
	{"test/e2e/cluster/collect.go", `"get", "ipr", "-A"`, []string{
		"kubectl get ipr -A",
	}},
	{"test/e2e/scenarios/nodepool_test.go", `t.Kubectl("get", "nap")`, []string{
		"kubectl get nap",
	}},
	{"test/e2e/scenarios/reservations_test.go", `{"spec":{"release":%q}}`, []string{
		`kubectl patch ipr -n db db-0-5f1c9a02 --type=merge -p "{\"spec\":{\"release\":\"$id\"}}"`,
	}},
	{"test/e2e/scenarios/chosen_test.go", `"--from-literal="+t.NS+".choose=true")`, []string{
		"kubectl -n leasehold-system create configmap leasehold-limits --from-literal=db.choose=true",
		"kubectl get areq -n db",
		"kubectl delete areq -n db db-0",
	}},
	{"test/e2e/scenarios/install_test.go", `t.leasehold("install", "--yes")`, []string{
		"kubectl leasehold install",
	}},
	{"test/e2e/scenarios/install_test.go", `s.leasehold("uninstall", "--crds")`, []string{
		"kubectl leasehold uninstall",
	}},
	{"test/netns/uninstall_test.go", `node.Leasectl(append([]string{"uninstall"`, []string{
		"leasectl uninstall",
	}},
}

// TestDocumentedCommandsRun checks that tests run the commands of the documents: leasectl's, in
// blocks and inline, with the same flags in a script of test/script; those of make are targets; the
// others are in elsewhere.
func TestDocumentedCommandsRun(t *testing.T) {
	commands := map[string][]string{} // the documents by command
	for _, f := range tracked(t, "*.md") {
		if slices.Contains([]string{"CHANGELOG.md", "docs/commands.md"}, f.name) {
			continue
		}
		for _, c := range documented(string(f.content)) {
			commands[c] = append(commands[c], f.name)
		}
	}
	isElsewhere := map[string]bool{}
	for _, e := range elsewhere {
		if e.file != "" && !strings.Contains(string(tracked(t, e.file)[0].content), e.text) {
			t.Errorf("%s, which runs %q, does not contain %q any more", e.file, e.commands, e.text)
		}
		for _, c := range e.commands {
			isElsewhere[c] = true
			if commands[c] == nil {
				t.Errorf("elsewhere has %q, which is in no document", c)
			}
		}
	}
	targets := string(tracked(t, "Makefile")[0].content)
	ran := scriptCommands(t)
	for _, c := range slices.Sorted(maps.Keys(commands)) {
		if isElsewhere[c] {
			continue
		}
		words := strings.Fields(c)
		covered := false
		switch {
		case words[0] == "make":
			covered = strings.Contains(targets, "\n"+words[1]+":")
		case isLeasectl(c):
			wanted := parseLeasectl(c)
			covered = slices.ContainsFunc(ran, func(r invocation) bool { return r.covers(wanted) })
		}
		if !covered {
			t.Errorf("%s: no test runs %q; run it in a script of test/script, or list it in elsewhere",
				strings.Join(commands[c], ", "), c)
		}
	}
}

var (
	blockCommand  = regexp.MustCompile(`^ {4,}(?:\$ )?((?:leasectl|kubectl|helm|make) .*)$`)
	inlineCommand = regexp.MustCompile("`((?:leasectl|kubectl leasehold|make) [^`]*)`")
	comment       = regexp.MustCompile(` +#.*$`)
)

// documented returns the commands of a document: the lines of blocks, and inline those of leasectl
// and make.
func documented(text string) (out []string) {
	text = strings.ReplaceAll(text, "\\\n", " ")
	for l := range strings.Lines(text) {
		l = strings.TrimRight(l, "\n")
		found := inlineCommand.FindAllStringSubmatch(l, -1)
		if m := blockCommand.FindStringSubmatch(l); m != nil {
			found = append(found, m)
		}
		for _, m := range found {
			c := strings.TrimSuffix(strings.TrimSpace(comment.ReplaceAllString(m[1], "")), " |")
			out = append(out, strings.Join(strings.Fields(c), " "))
		}
	}
	return out
}

func isLeasectl(command string) bool {
	return strings.HasPrefix(command, "leasectl ") || strings.HasPrefix(command, "kubectl leasehold ")
}

// invocation is a command line of leasectl.
type invocation struct {
	isPlugin bool // kubectl leasehold
	verb     string
	flags    []string // names
}

// verbs are the commands of leasectl, on nodes and as kubectl's plugin.
var verbs = []string{"bundle", "check", "doctor", "gc", "history", "install", "list", "pools", "recover", "release",
	"reserve", "uninstall"}

func parseLeasectl(command string) (out invocation) {
	out.isPlugin = strings.HasPrefix(command, "kubectl")
	for _, w := range strings.Fields(command) {
		switch {
		case strings.HasPrefix(w, "-"):
			name, _, _ := strings.Cut(w, "=")
			out.flags = append(out.flags, name)
		case out.verb == "" && slices.Contains(verbs, w):
			out.verb = w
		}
	}
	return out
}

// covers reports whether a test that runs r shows that other works.
func (r invocation) covers(other invocation) bool {
	lacks := func(flag string) bool { return !slices.Contains(r.flags, flag) }
	return r.isPlugin == other.isPlugin && r.verb == other.verb && !slices.ContainsFunc(other.flags, lacks)
}

// scriptCommands returns the command lines of leasectl in the scripts of test/script.
func scriptCommands(t *testing.T) (out []invocation) {
	command := regexp.MustCompile(`\b(leasectl|kubectl-leasehold) [^;|&'")]*`)
	for _, f := range tracked(t, "test/script/testdata/*.txtar") {
		script, _, _ := strings.Cut(string(f.content), "\n-- ")
		for l := range strings.Lines(script) {
			if strings.HasPrefix(l, "#") {
				continue
			}
			for _, c := range command.FindAllString(l, -1) {
				out = append(out, parseLeasectl(strings.Replace(c, "kubectl-", "kubectl ", 1)))
			}
		}
	}
	return out
}
