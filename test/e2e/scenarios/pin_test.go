package scenarios

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
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
	t.Step("sixty echoservers run on three nodes; all are deleted at once")
	set := t.Echoserver("echoserver", nil, 60)
	before := set.Ready()
	t.onSameNodes(before, set.Recreate())
	t.replaced(0)
	t.Step("nine of them are restarted one after the other")
	set.Scale(9)
	before = set.Ready()
	t.onSameNodes(before, set.Rollout())
}

func pinModes(t *Test) {
	for _, mode := range []string{"require", "prefer"} {
		t.Step("%s: deleted and recreated on their nodes", mode)
		set := t.Echoserver(mode, nil, 3, Pin(mode))
		before := set.Ready()
		t.published(before)
		after := set.Recreate()
		t.onSameNodes(before, after)
		for name, p := range after {
			if p.Annotations[pinnedNode] != p.Spec.NodeName || !strings.Contains(p.Annotations[pinReason], mode) {
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

func pinElsewhere(t *Test) {
	t.Step("the scheduler prefers any other node than that of a pod, which returns nevertheless")
	set := t.Echoserver("echoserver", nil, 1)
	const name = "echoserver-0"
	before := set.Ready()
	t.published(before)
	cool := t.Taint(t.NodeOf(before[name]), "leasehold.dev/e2e=hot:PreferNoSchedule")
	t.onSameNodes(before, set.Recreate())
	cool()
	for _, c := range []struct {
		about string
		place func(*cluster.Node) (undo func())
		says  string
	}{
		{"cordoned", t.Cordon, "is cordoned"},
		{"tainted", func(n *cluster.Node) func() { return t.Taint(n, "leasehold.dev/e2e=x:NoSchedule") },
			"has the taint"},
	} {
		before := set.Ready()
		t.published(before)
		node := t.NodeOf(before[name])
		t.Step("its node is %s, so it runs elsewhere at once", c.about)
		undo := c.place(node)
		set.Delete(before)
		p := t.moved(before, set.ReadyBut(before), name)
		undo()
		t.EventOf(p, "PinNotPossible", node.Name, c.says)
		t.EventOf(p, "AddressChanged", node.Name, c.says)
	}
	t.Step("it is evicted from a node that is not cordoned, so that it can move")
	before = set.Ready()
	t.published(before)
	t.Must(t.Client.PolicyV1().Evictions(t.NS).Evict(t.Ctx,
		&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: t.NS}}))
	after := set.ReadyBut(before)
	t.EventOf(after[name], "PinNotPossible", "it was evicted from "+before[name].Spec.NodeName)
	t.Step("deleted, it is pinned again")
	t.published(after)
	t.onSameNodes(after, set.Recreate())
}

func pinNodeDead(t *Test) {
	t.Step("four echoservers start on one node, and a pod of a Deployment with a reservation name")
	n := t.Node(1)
	sets := map[string]*Set{}
	befores := map[string]Pods{}
	for name, options := range map[string][]Option{"dead": nil, "gone": nil, "patient-dead": {Patience("20s")},
		"patient-gone": {Patience("20s")}} {
		sets[name] = t.Echoserver(name, n, 1, options...)
		befores[name] = sets[name].Ready()
		t.published(befores[name])
		sets[name].anywhere()
	}
	registry := t.Named("registry", nil, 1, recreateStrategy, preferring(n))
	ofRegistry := registry.Ready()
	t.published(ofRegistry)
	t.Step("the kubelet of %s stops; the pods are force-deleted", n.Name)
	t.Cleanup(func() { t.removeSystemPod(t.Agent(n).Name) }) // its token names the node that was deleted
	t.withoutKubelet(n)
	t.waitNotReady(n)
	for _, name := range []string{"patient-dead", "dead"} {
		t.forceDelete(befores[name])
	}
	t.forceDelete(ofRegistry)
	waiting := sets["patient-dead"].waits("patient-dead-0", befores["patient-dead"])
	p := t.moved(befores["dead"], sets["dead"].ReadyBut(befores["dead"]), "dead-0")
	t.EventOf(p, "AddressChanged", n.Name, "is not Ready")
	for _, p := range registry.ReadyBut(ofRegistry) {
		t.EventOf(p, "AddressChanged", n.Name, "is not Ready")
	}
	t.Step("the one with a patience runs elsewhere after that")
	t.EventOf(waiting, "PodReplaced", n.Name)
	p = t.moved(befores["patient-dead"], sets["patient-dead"].ReadyBut(Pods{waiting.Name: waiting}), waiting.Name)
	t.EventOf(p, "AddressChanged", n.Name)
	t.Step("the node object is deleted as well, and the reservations with it: no pod waits")
	t.Must(t.Client.CoreV1().Nodes().Delete(t.Ctx, n.Name, metav1.DeleteOptions{}))
	for _, name := range []string{"gone", "patient-gone"} {
		t.forceDelete(befores[name])
	}
	for _, name := range []string{"gone", "patient-gone"} {
		t.moved(befores[name], sets[name].ReadyBut(befores[name]), name+"-0")
	}
}

// anywhere removes the affinity from the template: new pods may run on any node.
func (s *Set) anywhere() {
	s.patch(`{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null},` +
		`"template":{"spec":{"affinity":null}}}}`)
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

func pinManagerDown(t *Test) {
	set, patient := t.Echoserver("echoserver", nil, 3), t.Echoserver("patient", nil, 1, Patience("forever"))
	before, first := set.Ready(), patient.Ready()
	t.published(first)
	t.Step("a pod waits for its node, which is cordoned, and all managers are stopped: pods start unpinned")
	uncordon := t.Cordon(t.NodeOf(first["patient-0"]))
	patient.Delete(first)
	patient.waits("patient-0", first)
	back := t.WithoutManager()
	set.Delete(before)
	after := set.ReadyBut(before)
	for name, p := range after {
		if p.Annotations[pinReason] != "" {
			t.Fatalf("%s has the annotations %v", name, p.Annotations)
		}
	}
	t.Step("the one that waits starts when its node accepts it")
	uncordon()
	t.onSameNodes(first, patient.ReadyBut(first))
	t.Step("they run again: pods are pinned again, also those that have left holds on other nodes")
	back()
	t.published(after)
	t.Until("no former reservation is published as bound", func() bool {
		return !slices.ContainsFunc(t.Reservations(), func(r v1alpha1.IPReservation) bool {
			p, is := after[r.Spec.PodName]
			return is && r.Spec.NodeName != p.Spec.NodeName && r.Status.State != v1alpha1.Held
		})
	})
	set.Delete(after)
	t.onSameNodes(after, set.ReadyBut(after))
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
	t.Until("the CA is repaired", func() bool { return caBundle() == good })
	t.Step("the Secret is emptied: every manager serves a new certificate of a new CA")
	t.Kubectl("--namespace="+cluster.System, "patch", "secret", name, "--type=json", "-p",
		`[{"op":"remove","path":"/data"}]`)
	t.Until("the CA is another one", func() bool {
		now := caBundle()
		return now != good && now != ""
	})
	probe := t.bare("probe", nil)
	t.Until("the webhook is called for twenty pods in a row", func() bool {
		for range 20 {
			if t.createPod(probe, metav1.DryRunAll).Annotations[pinReason] == "" {
				return false
			}
		}
		return true
	})
}

// table reads a table of pkg/policy/testdata: quoted values, and their meaning.
func (t *Test) table(name string) map[string]string {
	data, err := os.ReadFile(filepath.Join(t.Cluster.Repo, "pkg/policy/testdata", name))
	t.Must(err)
	rows := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, `"`) {
			var word, meaning string
			_, err := fmt.Sscanf(line, "%q %s", &word, &meaning)
			t.Must(err)
			rows[word] = meaning
		}
	}
	return rows
}

func pinValues(t *Test) {
	t.Step("every value of the tables that the parsers are tested with")
	for annotation, table := range map[string]map[string]string{Window: t.table("windows.txt"),
		pinMode: t.table("pins.txt"), pinPatience: t.table("patience.txt"),
		"leasehold.dev/topology-patience": t.table("patience.txt"), reserveAs: t.table("reservations.txt")} {
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
	t.Step("%s", t.Refused(t.manifest("echoserver.yaml", `duration: "10m"`, "duration: ten"),
		"reserved-ip-duration", `"ten" is not a window`, `want whole minutes ("10")`, `"90s", "24h"`, `"forever"`))

	t.Step("every kind of template, Deployments with a reservation name, pods and labels of namespaces")
	var rows []struct {
		Object           object
		Refused, Warning string
	}
	t.Must(yaml.UnmarshalStrict([]byte(t.manifest("values.yaml", "NAMESPACE", t.NS)), &rows))
	for _, row := range rows {
		text, err := json.Marshal(row.Object)
		t.Must(err)
		if row.Refused != "" {
			t.Refused(string(text), row.Refused)
			continue
		}
		out, err := t.kubectl(string(text), "create", "--dry-run=server", "-f", "-")
		warned := strings.Contains(out, "Warning")
		if err != nil || warned != (row.Warning != "") || !strings.Contains(out, row.Warning) {
			t.Fatalf("%s: %v %s; want the warning %q", text, err, out, row.Warning)
		}
	}
}
