package scenarios

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// An operator has the questions of docs/operations.md and runs the commands that answer them, in a
// directory in which `kubectl leasehold` is installed.
type operator struct {
	*Test
	dir       string
	questions map[string]string // the commands by question
	asked     map[string]bool
}

// operator returns an operator who has read docs/operations.md. leasectl is run on a node as the
// document says for nodes without a shell.
func (t *Test) operator(n *cluster.Node) *operator {
	text, err := os.ReadFile(filepath.Join(t.Cluster.Repo, "docs/operations.md"))
	t.Must(err)
	_, section, _ := strings.Cut(string(text), "\n## Questions\n")
	section, _, _ = strings.Cut(section, "\n### ")
	o := &operator{Test: t, dir: t.pluginDir(), questions: map[string]string{}, asked: map[string]bool{}}
	onNode := "#!/bin/sh\n"
	row := regexp.MustCompile("^\\| (.*\\S) +\\| `([^`]*)`")
	for line := range strings.Lines(section) {
		if m := row.FindStringSubmatch(line); m != nil {
			o.questions[m[1]] = strings.ReplaceAll(m[2], `\|`, "|") // which is how a cell of a table has it
		}
		if command, ok := strings.CutPrefix(line, "    "); ok {
			onNode += strings.ReplaceAll(command, "<node>", n.Name)
		}
	}
	onNode = strings.TrimSuffix(onNode, " list\n") + " \"$@\"\n"
	t.Must(os.WriteFile(filepath.Join(o.dir, "leasectl"), []byte(onNode), 0o755))
	return o
}

// ask runs the command for a question with names in place of those in the document, and further
// words. status is the exit status that the command must have.
func (o *operator) ask(question string, status int, names map[string]string, words ...string) string {
	command, found := o.questions[question]
	if !found {
		o.Fatalf("docs/operations.md has no command for %q; it has %q", question, slices.Sorted(maps.Keys(o.questions)))
	}
	o.asked[question] = true
	for from, to := range names {
		if !strings.Contains(command, from) {
			o.Fatalf("%q has no %s", command, from)
		}
		command = strings.ReplaceAll(command, from, to)
	}
	command = strings.Join(append([]string{command}, words...), " ")
	out, err := o.shell(o.dir, fmt.Sprintf("PATH=$PWD:$PATH; code=0; %s || code=$?; test $code = %d", command, status))
	if err != nil {
		o.Fatalf("%s: %v, want the exit status %d\n%s", command, err, status, out)
	}
	o.Step("%s\n    $ %s\n    %s", question, command, strings.ReplaceAll(strings.TrimSpace(out), "\n", "\n    "))
	return out
}

// has ends the scenario unless a line of an answer has all words, in their order.
func (o *operator) has(answer string, words ...string) {
	o.Helper()
	for i := range words {
		words[i] = regexp.QuoteMeta(words[i])
	}
	if !regexp.MustCompile(`(?m)^.*` + strings.Join(words, ".*") + `.*$`).MatchString(answer) {
		o.Fatalf("no line has %q:\n%s", words, answer)
	}
}

// historyLine is an element of the output of `kubectl leasehold history -o json`.
type historyLine struct {
	Time                                         time.Time
	Node, Event, Address, Namespace, Pod, Reason string
}

func (o *operator) history(out string) (lines []historyLine) {
	o.Must(json.Unmarshal([]byte(out), &lines))
	return lines
}

// hadAt returns which pod had an address at a moment according to its history, as the document says
// how to read it.
func hadAt(lines []historyLine, at time.Time) (pod, node string) {
	for _, l := range lines {
		switch {
		case l.Time.After(at):
			return pod, node
		case slices.Contains([]string{"Bound", "Kept", "TakenOver"}, l.Event):
			pod, node = l.Namespace+"/"+l.Pod, l.Node
		case slices.Contains([]string{"Released", "Orphaned", "Superseded"}, l.Event):
			pod, node = "", ""
		}
	}
	return pod, node
}

// operatorQuestions asks the questions of docs/operations.md in a cluster with pods that were
// recreated, and compares the answers with what happened.
func operatorQuestions(t *Test) {
	n, other := t.Node(1), t.Node(2)
	o := t.operator(n)
	if len(o.questions) < 10 {
		t.Fatalf("docs/operations.md has the questions %q", o.questions)
	}
	const (
		wrong       = "What is wrong in the cluster?"
		wrongOnNode = "What is wrong on this node?"
		notKeeping  = "Is any node not keeping addresses, and why?"
		howFull     = "How full is node7?"
		free        = "Which addresses of the node are free?"
		atNoon      = "Which pod had 10.1.2.3 at noon, and on which node?"
		another     = "Why did db-0 get another address?"
		elsewhere   = "Why did db-0 start on another node?"
		isKept      = "Is the address of db-0 kept while the pod is away, and for how long?"
		releaseOne  = "How to release the address of db-0?"
		whoHas      = "Which pod has 10.1.2.3 now, or for which is it held?"
		whichHeld   = "Which addresses are held, for whom, until when?"
		giveBack    = "How to release everything that is held for namespace x?"
		notReleased = "Why is an address not released on the node?"
		sound       = "Is the node's store sound?"
		report      = "What does a report of a problem need?"
	)

	t.Step("db runs on %s and is recreated, web on %s is away", n.Name, other.Name)
	db := t.Echoserver("db", n, 2)
	before := db.Ready()
	t.Sleep(2 * time.Second) // the journal has seconds
	noon := time.Now()
	t.Sleep(2 * time.Second)
	after := db.Recreate()
	t.Kept(before, after)
	web := t.Echoserver("web", other, 1, KeptFor("1h"))
	away := web.Ready()["web-0"].Status.PodIP
	t.Sleep(2 * time.Second)
	left := time.Now()
	t.Sleep(2 * time.Second)
	web.Scale(0)
	t.Eventually(soon, "web-0 is away", func() error {
		if r, found := t.Reservation("web-0", other); !found || r.Status.State != "Held" {
			return fmt.Errorf("its reservation: %+v", r.Status)
		}
		return nil
	})
	first, second := after["db-0"].Status.PodIP, after["db-1"].Status.PodIP

	t.healthy(o.dir)
	o.has(o.ask(wrong, 0, nil), "nothing was found")
	o.has(o.ask(wrongOnNode, 0, nil), "nothing was found")

	answer := o.ask(whoHas, 0, map[string]string{"10.1.2.3": first})
	o.has(answer, t.NS, "db-0", n.Name, first, "Bound")
	answer = o.ask(whoHas, 0, map[string]string{"10.1.2.3": away})
	o.has(answer, t.NS, "web-0", away, "Held")

	lines := o.history(o.ask(atNoon, 0, map[string]string{"10.1.2.3": first}, "-o json"))
	if pod, node := hadAt(lines, noon); pod != t.NS+"/db-0" || node != n.Name {
		t.Fatalf("at noon %q on %q had %s, want db-0 on %s: %+v", pod, node, first, n.Name, lines)
	}
	lines = o.history(o.ask(atNoon, 0, map[string]string{"10.1.2.3": away}, "-o json"))
	for at, want := range map[time.Time]string{noon: "", left: t.NS + "/web-0", time.Now().Add(time.Second): ""} {
		if pod, _ := hadAt(lines, at); pod != want {
			t.Fatalf("at %s %q had %s, want %q: %+v", at, pod, away, want, lines)
		}
	}

	o.has(o.ask(isKept, 0, map[string]string{"-n db": "-n " + t.NS}), "web-0", "1h")
	answer = o.ask(whichHeld, 0, nil)
	o.has(answer, t.NS, "web-0", other.Name, away, "Held")
	held := regexp.MustCompile(t.NS + ` .* web-0 .* Held +(\S+)`).FindStringSubmatch(answer)
	if held == nil || strings.Count(answer, t.NS+" ") != 1 {
		t.Fatalf("of this namespace only web-0 is held:\n%s", answer)
	}
	until, err := time.Parse(time.RFC3339, held[1])
	if d := until.Sub(left); err != nil || d < time.Hour-time.Minute || d > time.Hour+time.Minute {
		t.Fatalf("it is held until %s, want an hour after %s", held[1], left)
	}

	o.fullness(howFull, n)
	o.drawn(free, n, map[string]byte{first: 'B', second: 'B'})
	o.has(o.ask(sound, 0, nil), "no problems found")

	t.Step("the administrator releases the address of db-0, which runs, and db-0 is recreated")
	o.has(o.ask(releaseOne, 0, map[string]string{"db/db-0": t.NS + "/db-0"}, "<<<y"), "1 released")
	t.Eventually(led, "the reservation of db-0 goes", func() error {
		if _, found := t.Reservation("db-0", n); found {
			return errors.New("it is there")
		}
		return nil
	})
	db.Delete(Pods{"db-0": after["db-0"]})
	now := db.ReadyBut(Pods{"db-0": after["db-0"]})
	if now["db-0"].Status.PodIP == first {
		t.Fatalf("db-0 has %s again", first)
	}
	o.why(another, "db-0", "Revoked", "spec.release")

	t.Step("the window of db-1 ends while it is away")
	t.Kubectl("annotate", "--overwrite", "pods", "-l", "app=db", Window+"=3s")
	t.windowBecomes(n, "3s")
	db.Scale(1)
	t.Eventually(time.Minute, "the hold ends", func() error {
		// Until the agent has ended it, the pod gets its address back, although the window has
		// passed.
		if !slices.ContainsFunc(t.History(n), func(e inspect.Entry) bool {
			return e.Pod == "db-1" && e.Event == "Expired"
		}) {
			return errors.New("the journal does not say so")
		}
		return nil
	})
	if now = scaledTo(db, 2); now["db-1"].Status.PodIP == second {
		t.Fatalf("db-1 has %s again", second)
	}
	o.why(another, "db-1", "Expired", "3s")

	answer = o.ask(giveBack, 0, map[string]string{"=x": "=" + t.NS}, "--dry-run")
	o.has(answer, t.NS, "web-0", away)
	answer = o.ask(giveBack, 0, map[string]string{"=x": "=" + t.NS}, "<<<y")
	o.has(answer, "1 released")
	o.ask(whoHas, 1, map[string]string{"10.1.2.3": away})
	if all, ok := t.Leases(other); ok && len(all) > 0 {
		t.Fatalf("the store of %s has %+v", other.Name, all)
	}

	roaming := t.Echoserver("roaming", nil, 1)
	t.Step("the node of roaming-0 is cordoned, and it is recreated")
	uncordon := t.Cordon(t.NodeOf(roaming.Ready()["roaming-0"]))
	t.published(roaming.Ready())
	roaming.Recreate()
	uncordon()
	o.has(o.ask(elsewhere, 0, map[string]string{"-n db db-0": "-n " + t.NS + " roaming-0"}), "NodeCordoned")

	o.ask(notKeeping, 0, nil)

	for command, want := range map[string]string{ // other documented commands that only print
		"kubectl -n leasehold-system logs ds/leasehold-agent -c install":                            "leasehold",
		"kubectl -n leasehold-system rollout status deployment/leasehold-manager":                   "rolled out",
		"kubectl get crd persistentpodstates.apps.kruise.io -o jsonpath='{.spec.versions[*].name}'": "v1beta1",
	} {
		out, err := t.shell(o.dir, command)
		if err != nil || !strings.Contains(out, want) {
			t.Fatalf("%s: %v\n%s; want %q", command, err, out, want)
		}
	}

	answer = strings.TrimSpace(o.ask(report, 0, nil))
	out, err := t.shell(o.dir, "tar tzf "+answer)
	t.Must(err)
	for _, file := range []string{"doctor.json", "errors.txt", "objects/reservations.json",
		"nodes/" + n.Name + "/history.json", "nodes/" + other.Name + "/list.json"} {
		o.has(out, "leasehold/"+file)
	}

	t.Step("no agent runs on %s, and the sandbox of db-0 ends without a DEL", n.Name)
	t.WithoutAgent(n)
	t.forget(n, Pods{"db-0": now["db-0"]})
	t.Must(os.Remove(filepath.Join(o.dir, "leasectl"))) // there is no pod of an agent to run it in
	plan, err := n.Machine().Run(t.Ctx, append([]string{t.Cluster.Leasectl()},
		strings.Fields(strings.TrimPrefix(o.questions[notReleased], "leasectl "))...)...)
	t.Must(err)
	o.asked[notReleased] = true
	t.Step("%s\n    $ %s\n%s", notReleased, o.questions[notReleased], plan)
	o.has(string(plan), now["db-0"].Status.PodIP, t.NS+"/db-0", "its sandbox is gone")
	t.resume(n)

	for question := range o.questions {
		if !o.asked[question] {
			t.Errorf("this scenario does not ask %q", question)
		}
	}
}

// fullness asks how full a node is, and compares the answer with the node's store. Holds of earlier
// scenarios may end meanwhile: it asks again then.
func (o *operator) fullness(question string, n *cluster.Node) {
	network := n.DefaultNetwork().Name
	o.Eventually(nodePoolLag, "the answer is what the store of "+n.Name+" has", func() error {
		sets, err := inspect.Pools(o.Ctx, n.Machine(), o.Cluster.Leasectl(), network)
		o.Must(err)
		p, err := inspect.ReadNodeAddressPool(o.Ctx, o.Dynamic, n.Name)
		o.Must(err)
		if shown, _ := p.Network(network); shown != sets[0] {
			return fmt.Errorf("the NodeAddressPool shows %+v, the store has %+v", shown, sets)
		}
		var answer inspect.NodeAddressPool
		o.Must(json.Unmarshal([]byte(o.ask(question, 0, map[string]string{"node7": n.Name}, "-o json")), &answer))
		if shown, _ := answer.Network(network); answer.Metadata.Name != n.Name || shown != sets[0] {
			return fmt.Errorf("the answer is %+v, the store has %+v", answer, sets)
		}
		return nil
	})
}

// drawn asks for the map of a node, and checks the letters of addresses.
func (o *operator) drawn(question string, n *cluster.Node, want map[string]byte) {
	letters, column := map[string]byte{}, 0
	head := regexp.MustCompile(`^network \S+, \S+-(\S+): `)
	for line := range strings.Lines(o.ask(question, 0, nil)) {
		if m := head.FindStringSubmatch(line); m != nil {
			column = len(m[1]) + 3
			continue
		}
		at := netip.MustParseAddr(strings.Fields(line)[0])
		for i := column; i < len(line)-1; i++ {
			letters[at.String()] = line[i]
			at = at.Next()
		}
	}
	for a, letter := range want {
		if letters[a] != letter {
			o.Fatalf("%s is drawn as %q, want %q", a, letters[a], letter)
		}
	}
}

// why asks why a pod got another address. The answer is the event before the last Bound that ended
// the reservation of the former address, as the document says.
func (o *operator) why(question, pod, event, reason string) {
	lines := o.history(o.ask(question, 0, map[string]string{"db/db-0": o.NS + "/" + pod}, "-o json"))
	var last, answer historyLine
	for _, l := range lines {
		switch l.Event {
		case "Revoked", "Expired", "Yielded", "Superseded":
			last = l
		case "Bound":
			answer = last
		}
	}
	if answer.Event != event || !strings.Contains(answer.Reason, reason) {
		o.Fatalf("the answer is %+v, want %s with %q", answer, event, reason)
	}
	o.Step("%s: %s", answer.Event, answer.Reason)
}
