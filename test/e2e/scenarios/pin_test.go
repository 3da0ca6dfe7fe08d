package scenarios

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// The annotations and labels of the pin.
const (
	pinMode     = "leasehold.dev/pin"
	pinPatience = "leasehold.dev/pin-patience"
	pinnedNode  = "leasehold.dev/pinned-node"
	pinReason   = "leasehold.dev/pin-reason"
	retained    = "leasehold.dev/retained"
)

// Pin sets the mode of the pods' pin.
func Pin(mode string) Option {
	return func(template *corev1.PodTemplateSpec) { template.Annotations[pinMode] = mode }
}

// Patience sets how long a pinned pod waits for its node.
func Patience(d string) Option {
	return func(template *corev1.PodTemplateSpec) { template.Annotations[pinPatience] = d }
}

// Needing makes each pod request one unit of a resource.
func Needing(name string) Option {
	return func(template *corev1.PodTemplateSpec) {
		one := corev1.ResourceList{corev1.ResourceName(name): resource.MustParse("1")}
		template.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: one, Limits: one}
	}
}

// onSameNodes ends the scenario if a pod is not on its predecessor's node with its addresses.
func (t *Test) onSameNodes(before, after Pods) {
	var lost []string
	for name, old := range before {
		if now := after[name]; now.Spec.NodeName != old.Spec.NodeName {
			lost = append(lost, fmt.Sprintf("%s was on %s and is on %s (%s)",
				name, old.Spec.NodeName, now.Spec.NodeName, now.Annotations[pinReason]))
		}
	}
	if len(lost) > 0 {
		slices.Sort(lost)
		t.Fatalf("%s", strings.Join(lost, "; "))
	}
	t.Kept(before, after)
}

// moved ends the scenario if a pod is still on the node of its predecessor, and returns the pod.
func (t *Test) moved(before, after Pods, name string) corev1.Pod {
	if before[name].Spec.NodeName == after[name].Spec.NodeName {
		t.Fatalf("%s is on %s again", name, after[name].Spec.NodeName)
	}
	return after[name]
}

// published waits until the reservations of all these pods are there, on their nodes.
func (t *Test) published(pods Pods) {
	t.Eventually("the reservations are published", func() error {
		for name, p := range pods {
			r, found := t.Reservation(name, t.NodeOf(p))
			if !found || r.Status.PodUID != string(p.UID) {
				return fmt.Errorf("that of %s is not", name)
			}
		}
		return nil
	})
}

func pin(t *Test) {
	t.Step("nine echoservers start on any node, and are restarted one after the other, twice")
	set := t.Echoserver("echoserver", nil, 9)
	before := set.Ready()
	for range 2 {
		t.onSameNodes(before, set.Rollout())
	}
	t.Step("all are deleted at once")
	t.onSameNodes(before, set.Recreate())
}

func pinModes(t *Test) {
	for mode, effect := range map[string]string{"require": "require", "prefer": "prefer", "nominate": "require"} {
		t.Step("%s: deleted and recreated on their nodes", mode)
		set := t.Echoserver(mode, nil, 3, Pin(mode))
		before := set.Ready()
		t.published(before)
		after := set.Recreate()
		t.onSameNodes(before, after)
		for name, p := range after {
			if p.Annotations[pinnedNode] != p.Spec.NodeName || !strings.Contains(p.Annotations[pinReason], effect) {
				t.Fatalf("the annotations of %s are %v", name, p.Annotations)
			}
		}
	}
	t.Step("none: only the label is set")
	set := t.Echoserver("none", nil, 1, Pin("none"))
	set.Recreate()
	for name, p := range set.Pods() {
		if _, pinned := p.Annotations[pinnedNode]; pinned || p.Labels[retained] == "" {
			t.Fatalf("%s has the annotations %v and the labels %v", name, p.Annotations, p.Labels)
		}
	}
	t.Step("the webhook is not called for pods without a window, or whose user has set the node or the host's network")
	for name, change := range map[string]func(*corev1.Pod){
		"without-a-window": func(p *corev1.Pod) { delete(p.Annotations, Window) },
		"placed":           func(p *corev1.Pod) { p.Spec.NodeName = t.Node(1).Name },
		"host-network":     func(p *corev1.Pod) { p.Spec.HostNetwork = true },
		"generated":        func(p *corev1.Pod) { p.Name, p.GenerateName = "", "generated-" },
	} {
		p := t.bare(name, nil)
		change(p)
		got := t.createPod(p, metav1.DryRunAll)
		if got.Labels[retained] != "" || got.Annotations[pinReason] != "" {
			t.Fatalf("%s has the annotations %v and the labels %v", name, got.Annotations, got.Labels)
		}
	}
}

func pinShortLife(t *Test) {
	t.Step("an echoserver is deleted a second after it was scheduled, five times")
	set := t.Echoserver("echoserver", nil, 1)
	const name = "echoserver-0"
	first := set.Ready()[name]
	last := first
	for range 5 {
		t.Must(t.Client.CoreV1().Pods(t.NS).Delete(t.Ctx, name, metav1.DeleteOptions{}))
		t.Eventually("its successor is scheduled", func() error {
			p, err := t.Client.CoreV1().Pods(t.NS).Get(t.Ctx, name, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				return errors.New("there is none")
			case err != nil:
				return err
			case p.UID == last.UID || p.Spec.NodeName == "":
				return errors.New("it is not")
			}
			last = *p
			return nil
		})
		if last.Spec.NodeName != first.Spec.NodeName {
			t.Fatalf("it was on %s and is on %s: %s",
				first.Spec.NodeName, last.Spec.NodeName, last.Annotations[pinReason])
		}
		time.Sleep(time.Second) // how long the pod runs
	}
	t.onSameNodes(Pods{name: first}, set.Ready())
}

func pinElsewhere(t *Test) {
	t.Step("the scheduler prefers any other node than that of a pod, which returns nevertheless")
	hot := t.Echoserver("hot", nil, 1)
	before := hot.Ready()
	t.published(before)
	cool := t.Taint(t.NodeOf(before["hot-0"]), "leasehold.dev/e2e", "hot", corev1.TaintEffectPreferNoSchedule)
	t.onSameNodes(before, hot.Recreate())
	cool()
	for _, mode := range []string{"require", "prefer"} {
		set := t.Echoserver(mode, nil, 1, Pin(mode))
		for _, obstacle := range []struct {
			name  string
			place func(*cluster.Node) (undo func())
			says  string
		}{
			{"cordoned", t.Cordon, "is cordoned"},
			{"tainted", func(n *cluster.Node) func() {
				return t.Taint(n, "leasehold.dev/e2e", "x", corev1.TaintEffectNoSchedule)
			}, "has the taint"},
		} {
			before := set.Ready()
			t.published(before)
			node := t.NodeOf(before[mode+"-0"])
			t.Step("%s: its node is %s, so it runs elsewhere at once", mode, obstacle.name)
			undo := obstacle.place(node)
			set.Delete(before)
			p := t.moved(before, set.ReadyBut(before), mode+"-0")
			undo()
			t.EventOf(p, "PinNotPossible", node.Name, obstacle.says)
			t.EventOf(p, "AddressChanged", node.Name, obstacle.says)
		}
	}
}

// slot is the extended resource of the scenario.
func (t *Test) slot() string { return "leasehold.dev/" + t.NS }

// slots gives every node that many slots until the scenario ends.
func (t *Test) slots(count int) {
	slot := t.slot()
	for _, name := range t.Cluster.NodeNames() {
		patch := func(value string) {
			data := fmt.Sprintf(`{"status":{"capacity":{%q:%s},"allocatable":{%q:%s}}}`, slot, value, slot, value)
			_, err := t.Client.CoreV1().Nodes().Patch(t.Ctx, name, types.MergePatchType, []byte(data),
				metav1.PatchOptions{}, "status")
			t.Must(err)
		}
		patch(strconv.Quote(strconv.Itoa(count)))
		t.Cleanup(func() { patch("null") })
	}
}

// waits waits until the pod that replaces another is unschedulable, and returns it.
func (s *Set) waits(name string, old Pods) corev1.Pod {
	var waiting corev1.Pod
	s.t.Eventually("the new pod waits", func() error {
		p, found := s.Pods()[name]
		switch {
		case !found || p.UID == old[name].UID:
			return errors.New("there is none")
		case p.Spec.NodeName != "":
			s.t.Fatalf("it was sent to %s: %s", p.Spec.NodeName, p.Annotations[pinReason])
		case !slices.ContainsFunc(p.Status.Conditions,
			func(c corev1.PodCondition) bool { return c.Reason == corev1.PodReasonUnschedulable }):
			return errors.New("the scheduler has not tried it")
		}
		waiting = p
		return nil
	})
	return waiting
}

func pinNodeDead(t *Test) {
	t.Step("six echoservers start on one node")
	n := t.Node(1)
	sets := map[string]*Set{}
	befores := map[string]Pods{}
	for _, mode := range []string{"require", "prefer", "patient"} {
		for _, end := range []string{"dead", "gone"} {
			name, option := mode+"-"+end, Pin(mode)
			if mode == "patient" {
				option = Patience("20s")
			}
			sets[name] = t.Echoserver(name, n, 1, option)
			befores[name] = sets[name].Ready()
			t.published(befores[name])
			sets[name].anywhere()
		}
	}
	registry := t.Named("registry", nil, 1, recreateStrategy, preferring(n))
	ofRegistry := registry.Ready()
	t.published(ofRegistry)
	t.Step("the kubelet of %s stops; the pods are force-deleted", n.Name)
	t.Must(n.Stop(t.Ctx, cluster.Kubelet))
	t.Cleanup(func() {
		t.Must(n.StartKubelet(t.Ctx))
		t.WaitNode(n, time.Now())
		t.RestartAgent(n) // its token names the node that was deleted
	})
	t.waitNotReady(n)
	runs := func(name, why string) {
		p := t.moved(befores[name], sets[name].ReadyBut(befores[name]), name+"-0")
		t.EventOf(p, "AddressChanged", n.Name, why)
	}
	for _, name := range []string{"patient-dead", "require-dead", "prefer-dead"} {
		sets[name].ForceDelete(befores[name])
	}
	registry.ForceDelete(ofRegistry)
	waiting := sets["patient-dead"].waits("patient-dead-0", befores["patient-dead"])
	runs("require-dead", "is not Ready")
	runs("prefer-dead", "is not Ready")
	t.Step("the pod of a Deployment with a reservation name runs elsewhere")
	for _, p := range registry.ReadyBut(ofRegistry) {
		t.EventOf(p, "AddressChanged", n.Name, "is not Ready")
	}
	t.Step("the one with a patience runs elsewhere after that")
	t.EventOf(waiting, "PodReplaced", n.Name)
	p := t.moved(befores["patient-dead"], sets["patient-dead"].ReadyBut(Pods{waiting.Name: waiting}), waiting.Name)
	t.EventOf(p, "AddressChanged", n.Name)
	t.Step("the node object is deleted as well: no pod waits")
	t.Must(t.Client.CoreV1().Nodes().Delete(t.Ctx, n.Name, metav1.DeleteOptions{}))
	for _, mode := range []string{"require", "patient", "prefer"} {
		sets[mode+"-gone"].ForceDelete(befores[mode+"-gone"])
	}
	for _, mode := range []string{"require", "patient", "prefer"} { // their reservations went with the node
		name := mode + "-gone"
		t.moved(befores[name], sets[name].ReadyBut(befores[name]), name+"-0")
	}
}

// anywhere removes the affinity from the template: new pods may run on any node.
func (s *Set) anywhere() {
	s.patch(`{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null},` +
		`"template":{"spec":{"affinity":null}}}}`)
}

// pastPatience is longer than the patience of pods in these scenarios.
const pastPatience = 15 * time.Second

// pinPatient has other pods take the slot of a pod's node, of which each node has one. Nodes that
// are cordoned or dead are those of pin-uninstall and pin-node-dead.
func pinPatient(t *Test) {
	t.slots(1)
	set := t.Echoserver("echoserver", nil, 1, Patience("20s"), Needing(t.slot()))
	const name = "echoserver-0"
	before := set.away()
	node := t.NodeOf(before[name])
	t.Step("its node is full: the new pod waits, and after its patience it is replaced and runs on another node")
	filler := t.fill("filler", node, 1)
	set.Scale(1)
	waiting := set.waits(name, before)
	p := t.moved(before, set.ReadyBut(Pods{name: waiting}), name)
	t.EventOf(waiting, "PodReplaced", "waited 20s for "+node.Name)
	t.EventOf(p, "AddressChanged", node.Name)
	t.Step("and returns there")
	second := set.Ready()
	t.published(second)
	t.onSameNodes(second, set.Recreate())
	set.Scale(0)
	filler.Scale(0)

	t.Step("a pod without a controller whose patience is forever waits on")
	bare := t.bare("bare", nil, Pin("require"), Patience("forever"), Needing(t.slot()))
	t.createPod(bare)
	first := t.running("bare")
	t.published(Pods{"bare": first})
	t.Must(t.Client.CoreV1().Pods(t.NS).Delete(t.Ctx, "bare", metav1.DeleteOptions{}))
	t.gone("pod/bare")
	filler = t.fill("forever", t.NodeOf(first), 1)
	again := t.createPod(bare)
	time.Sleep(pastPatience)
	p2, err := t.Client.CoreV1().Pods(t.NS).Get(t.Ctx, "bare", metav1.GetOptions{})
	t.Must(err)
	if p2.UID != again.UID || p2.Spec.NodeName != "" {
		t.Fatalf("it is on %q, and was created %s", p2.Spec.NodeName, p2.CreationTimestamp)
	}
	filler.Scale(0)
	t.onSameNodes(Pods{"bare": first}, Pods{"bare": t.running("bare")})
}

// gone waits until an object does not exist any more.
func (t *Test) gone(object string) { t.Kubectl("wait", "--for=delete", object, "--timeout=5m") }

// running waits until a pod is Ready.
func (t *Test) running(name string) corev1.Pod {
	t.Kubectl("wait", "--for=condition=Ready", "pod/"+name, "--timeout=5m")
	pod, err := t.Client.CoreV1().Pods(t.NS).Get(t.Ctx, name, metav1.GetOptions{})
	t.Must(err)
	return *pod
}

func pinEvicted(t *Test) {
	t.Step("an echoserver is evicted from a node that is not cordoned, so that it can move")
	set := t.Echoserver("echoserver", nil, 1)
	const name = "echoserver-0"
	before := set.Ready()
	t.published(before)
	t.Must(t.Client.PolicyV1().Evictions(t.NS).Evict(t.Ctx,
		&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: t.NS}}))
	after := set.ReadyBut(before)
	if reason := after[name].Annotations[pinReason]; !strings.HasPrefix(reason, "Evicted: ") {
		t.Fatalf("the reason is %q", reason)
	}
	t.EventOf(after[name], "PinNotPossible", "it was evicted from "+before[name].Spec.NodeName)
	t.Step("deleted, it is pinned again")
	t.published(after)
	t.onSameNodes(after, set.Recreate())
}

func pinManagerDown(t *Test) {
	set := t.Echoserver("echoserver", nil, 3)
	before := set.Ready()
	t.Step("all managers are stopped: pods start unpinned, one of them on another node")
	back := t.WithoutManager()
	uncordon := t.Cordon(t.NodeOf(before["echoserver-0"]))
	set.Delete(before)
	after := set.ReadyBut(before)
	uncordon()
	for name, p := range after {
		if p.Annotations[pinReason] != "" {
			t.Fatalf("%s has the annotations %v", name, p.Annotations)
		}
	}
	t.Step("they run again: pods are pinned again, also those that have left holds on other nodes")
	back()
	t.published(after)
	t.Eventually("no former reservation is published as bound", func() error {
		for name, p := range before {
			if n := t.NodeOf(p); n.Name != after[name].Spec.NodeName {
				if r, found := t.Reservation(name, n); found && r.Status.State != "Held" {
					return fmt.Errorf("that of %s on %s is", name, n.Name)
				}
			}
		}
		return nil
	})
	set.Delete(after)
	t.onSameNodes(after, set.ReadyBut(after))
}

func pinFrozen(t *Test) {
	t.Must(t.Cluster.WaitDeployed(t.Ctx, time.Minute)) // after an outage they are not ready at once
	managers := t.Managers()
	if len(managers) != 2 {
		t.Fatalf("there are %d managers", len(managers))
	}
	t.slots(1)
	full := t.Echoserver("full", nil, 1, Needing(t.slot()))
	set := t.Echoserver("echoserver", nil, 6)
	for i, name := range []string{"one", "the other"} {
		t.Step("%s manager is frozen: a pod whose node is full is replaced", name)
		before := full.Ready()
		t.published(before)
		full.Scale(0)
		filler := t.Echoserver(fmt.Sprint("filler-", i), t.NodeOf(before["full-0"]), 1, KeptFor(""), Needing(t.slot()))
		resume := t.Freeze(managers[i])
		full.Scale(1)
		t.moved(before, full.Ready(), "full-0")
		t.Step("and pods are recreated; each starts")
		set.Recreate()
		filler.Scale(0)
		// The kubelet restarts a container that is frozen for a minute.
		resume()
		t.Must(t.Cluster.WaitDeployed(t.Ctx, 2*time.Minute))
	}
	t.Step("both are frozen: pods are admitted without them")
	for _, m := range managers {
		t.Freeze(m)
	}
	set.Recreate()
}

func pinUninstall(t *Test) {
	set := t.Echoserver("echoserver", nil, 2)
	before := set.Ready()
	t.published(before)
	t.Step("a pod waits for its node, and the managers are removed in the order of docs/operations.md")
	const name = "echoserver-0"
	patient := t.Echoserver("patient", nil, 1, Patience("forever"))
	first := patient.Ready()
	t.published(first)
	uncordon := t.Cordon(t.NodeOf(first["patient-0"]))
	patient.Delete(first)
	patient.waits("patient-0", first)
	t.Cleanup(func() {
		t.Kubectl("apply", "-f", filepath.Join(t.Cluster.Repo, "daemonset/base/manager/webhook.yaml"))
		t.Must(t.Cluster.WaitDeployed(t.Ctx, time.Minute))
		t.Eventually("the webhook is called again", t.webhookAnswers)
	})
	t.Kubectl("delete", "mutatingwebhookconfiguration", cluster.Manager)
	t.Kubectl("--namespace="+cluster.System, "scale", "deployment", cluster.Manager, "--replicas=0")
	t.Cleanup(func() {
		t.Kubectl("--namespace="+cluster.System, "scale", "deployment", cluster.Manager, "--replicas=2")
	})
	t.Kubectl("--namespace="+cluster.System, "wait", "--for=delete", "pod",
		"--selector=app.kubernetes.io/name="+cluster.Manager, "--timeout=60s")
	t.Step("pods start without a pin, and the one that waits starts when its node accepts it")
	for _, p := range set.Recreate() {
		if p.Annotations[pinReason] != "" {
			t.Fatalf("%s has the annotations %v", name, p.Annotations)
		}
	}
	uncordon()
	t.onSameNodes(first, patient.ReadyBut(first))
}

func pinCertificate(t *Test) {
	const name = "leasehold-manager"
	hooks := t.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	caBundle := func() string {
		config, err := hooks.Get(t.Ctx, name, metav1.GetOptions{})
		t.Must(err)
		return string(config.Webhooks[1].ClientConfig.CABundle)
	}
	good := caBundle()
	t.Step("the CA is removed from the webhook configuration")
	t.Kubectl("patch", "mutatingwebhookconfiguration", name, "--type=json", "-p",
		`[{"op":"remove","path":"/webhooks/1/clientConfig/caBundle"}]`)
	t.Eventually("the CA is repaired", func() error {
		if caBundle() != good {
			return errors.New("it is not")
		}
		return nil
	})
	t.Step("the Secret is emptied: every manager serves a new certificate of a new CA")
	t.Kubectl("--namespace="+cluster.System, "patch", "secret", name, "--type=json", "-p",
		`[{"op":"remove","path":"/data"}]`)
	t.Eventually("the CA changes", func() error {
		if now := caBundle(); now == good || now == "" {
			return errors.New("it has not")
		}
		return nil
	})
	t.Eventually("the webhook is called each time", t.webhookAnswers)
}

// webhookAnswers returns an error unless the webhook is called for twenty pods in a row.
func (t *Test) webhookAnswers() error {
	probe := t.bare("probe", nil)
	for range 20 {
		if t.createPod(probe, metav1.DryRunAll).Annotations[pinReason] == "" {
			return errors.New("it was not called for one")
		}
	}
	return nil
}

// table reads a table of pkg/policy/testdata: quoted values, and their meaning.
func (t *Test) table(name string) map[string]string {
	data, err := os.ReadFile(filepath.Join(t.Cluster.Repo, "pkg/policy/testdata", name))
	t.Must(err)
	rows := map[string]string{}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		quoted, err := strconv.QuotedPrefix(line)
		t.Must(err)
		word, err := strconv.Unquote(quoted)
		t.Must(err)
		rows[word] = strings.TrimSpace(line[len(quoted):])
	}
	return rows
}

func pinValues(t *Test) {
	t.Step("every value of the tables that the parsers are tested with")
	for annotation, table := range map[string]map[string]string{Window: t.table("windows.txt"),
		pinMode: t.table("pins.txt"), pinPatience: t.table("patience.txt"), reserveAs: t.table("reservations.txt")} {
		for word, means := range table {
			set := t.echoserver("words", nil, 1)
			set.Spec.Template.Annotations = map[string]string{annotation: word}
			_, err := t.Client.AppsV1().StatefulSets(t.NS).Create(t.Ctx,
				&set, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if (err != nil) != (means == "error") {
				t.Fatalf("%s: %q means %s, and the API server responds %v", annotation, word, means, err)
			}
		}
	}
	t.Step("a StatefulSet with a window of \"ten\"")
	manifest, err := os.ReadFile(filepath.Join(t.Cluster.Repo, "test/e2e/manifests/echoserver.yaml"))
	t.Must(err)
	t.Step("%s", t.Refused(strings.Replace(string(manifest), `duration: "10m"`, "duration: ten", 1),
		"reserved-ip-duration", `"ten" is not a window`, `want whole minutes ("10")`, `"90s", "24h"`, `"forever"`))

	t.Step("every kind of template, and a pod")
	for _, kind := range []struct{ api, kind, spec string }{
		{"v1", "ReplicationController", `{"selector":{"a":"b"},"template":%s}`},
		{"apps/v1", "StatefulSet", `{"serviceName":"x","selector":{"matchLabels":{"a":"b"}},"template":%s}`},
		{"apps/v1", "Deployment", `{"selector":{"matchLabels":{"a":"b"}},"template":%s}`},
		{"apps/v1", "ReplicaSet", `{"selector":{"matchLabels":{"a":"b"}},"template":%s}`},
		{"apps/v1", "DaemonSet", `{"selector":{"matchLabels":{"a":"b"}},"template":%s}`},
		{"batch/v1", "Job", `{"template":%s}`},
		{"batch/v1", "CronJob", `{"schedule":"0 0 1 1 *","jobTemplate":{"spec":{"template":%s}}}`},
	} {
		object := func(window string) string {
			template, err := json.Marshal(object{"metadata": object{"labels": object{"a": "b"},
				"annotations": object{Window: window}},
				"spec": object{
					"restartPolicy": map[bool]string{
						true: "Never", false: "Always"}[strings.HasSuffix(kind.kind, "Job")],
					"containers": []any{object{"name": "c", "image": "none"}}}})
			t.Must(err)
			return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"words"},"spec":%s}`,
				kind.api, kind.kind, fmt.Sprintf(kind.spec, template))
		}
		t.Refused(object("10 m"), `"10 m" is not a window`)
		out, err := t.kubectl(object("10"), "create", "--dry-run=server", "-f", "-")
		warned := strings.Contains(out, "Warning") && strings.Contains(out, "the pods of a "+kind.kind+" get new names")
		if err != nil || warned != (kind.kind != "StatefulSet") {
			t.Fatalf("%s: %v %s", kind.kind, err, out)
		}
	}
	t.Step("a Deployment with a reservation name")
	const both = `{"` + Window + `":"10","` + reserveAs + `":"a"}`
	for _, c := range []struct{ strategy, annotations, warning string }{
		{`{"type":"Recreate"}`, both, ""},
		{`{"rollingUpdate":{"maxSurge":0}}`, both, ""},
		{`{"rollingUpdate":{"maxSurge":"0%"}}`, both, ""},
		{`{"rollingUpdate":{"maxSurge":1}}`, both, "with maxSurge 1 new pods"},
		{`{}`, both, "spec.strategy.rollingUpdate.maxSurge to 0"},
		{`{}`, `{"` + reserveAs + `":"a"}`, "has no effect without a window"},
		{`{}`, `{}`, ""},
	} {
		out, err := t.kubectl(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"words"},"spec":{`+
			`"strategy":`+c.strategy+`,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":`+
			`{"labels":{"a":"b"},"annotations":`+c.annotations+`},"spec":{"containers":`+
			`[{"name":"c","image":"none"}]}}}}`,
			"create", "--dry-run=server", "-f", "-")
		if err != nil || !strings.Contains(out, c.warning) || strings.Contains(out, "Warning") != (c.warning != "") {
			t.Fatalf("%s %s: %v %s", c.strategy, c.annotations, err, out)
		}
	}
	t.Refused(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"words","annotations":{"`+pinMode+`":"must"}},`+
		`"spec":{"containers":[{"name":"c","image":"none"}]}}`,
		`"must" is not a pin mode; want "require", "prefer" or "none"`)
	t.Refused(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"words","annotations":{"`+pinPatience+`":"soon"}},`+
		`"spec":{"containers":[{"name":"c","image":"none"}]}}`,
		`"soon" is not a patience; want a duration ("5s", "2m")`)
	t.Refused(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+t.NS+`","labels":{"`+pinMode+`":"must"}}}`,
		`label leasehold.dev/pin: "must" is not a pin mode`)
	t.Refused(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+t.NS+`","labels":{"`+pinPatience+
		`":"soon"}}}`, `label leasehold.dev/pin-patience: "soon" is not a patience`)
	t.Step("a former mode is accepted with a warning")
	set := t.echoserver("words", nil, 1, Pin("nominate"))
	set.APIVersion, set.Kind = "apps/v1", "StatefulSet"
	data, err := json.Marshal(set)
	t.Must(err)
	out, err := t.kubectl(string(data), "create", "--dry-run=server", "-f", "-")
	if err != nil || !strings.Contains(out, `Warning: Validation failed for ValidatingAdmissionPolicy`) ||
		!strings.Contains(out, "is read as the default") {
		t.Fatalf("%v %s", err, out)
	}
}
