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
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/test/e2e/bed"
)

// The words that the manager writes on pods.
const (
	pinMode    = "leasehold.dev/pin"
	pinnedNode = "leasehold.dev/pinned-node"
	pinReason  = "leasehold.dev/pin-reason"
	retained   = "leasehold.dev/retained"
	gate       = "leasehold.dev/nominate"
)

// Pin sets the mode of the pods' pin.
func Pin(mode string) Option {
	return func(t *corev1.PodTemplateSpec) { t.Annotations[pinMode] = mode }
}

// Polite pods never have others evicted for them.
func (w *World) Polite() Option {
	never := corev1.PreemptNever
	classes := w.Client.SchedulingV1().PriorityClasses()
	_, err := classes.Create(w.Ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: w.NS}, Value: 1, PreemptionPolicy: &never}, metav1.CreateOptions{})
	w.Must(err)
	w.Cleanup(func() { w.Must(classes.Delete(w.Ctx, w.NS, metav1.DeleteOptions{})) })
	return func(t *corev1.PodTemplateSpec) { t.Spec.PriorityClassName = w.NS }
}

// GatedBy holds the pods back until somebody takes a gate off them.
func GatedBy(name string) Option {
	return func(t *corev1.PodTemplateSpec) {
		t.Spec.SchedulingGates = append(t.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: name})
	}
}

// Needing makes each pod take one of a resource.
func Needing(name string) Option {
	return func(t *corev1.PodTemplateSpec) {
		one := corev1.ResourceList{corev1.ResourceName(name): resource.MustParse("1")}
		t.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: one, Limits: one}
	}
}

// cameHome ends the scenario if a pod is not on the node of its predecessor, with its addresses.
func (w *World) cameHome(before, after Pods) {
	var lost []string
	for name, old := range before {
		if now := after[name]; now.Spec.NodeName != old.Spec.NodeName {
			lost = append(lost, fmt.Sprintf("%s was on %s and is on %s (%s)", name, old.Spec.NodeName, now.Spec.NodeName,
				now.Annotations[pinReason]))
		}
	}
	if len(lost) > 0 {
		slices.Sort(lost)
		w.Lostf("%s", strings.Join(lost, "; "))
	}
	w.Kept(before, after)
}

// moved ends the scenario if a pod is still on the node of its predecessor, and returns the pod.
func (w *World) moved(before, after Pods, name string) corev1.Pod {
	if before[name].Spec.NodeName == after[name].Spec.NodeName {
		w.Fatalf("%s is on %s again", name, after[name].Spec.NodeName)
	}
	return after[name]
}

// published waits until the reservations of all these pods are there, on their nodes.
func (w *World) published(pods Pods) {
	w.Eventually(30*time.Second, "the reservations are published", func() error {
		for name, p := range pods {
			r, found := w.Reservation(name, w.NodeOf(p))
			if !found || r.Status.PodUID != string(p.UID) {
				return fmt.Errorf("that of %s is not", name)
			}
		}
		return nil
	})
}

func pin(w *World) {
	w.Step("nine echoservers start where the scheduler likes, and are restarted one after the other, twice")
	set := w.Echoserver("echoserver", nil, 9)
	before := set.Ready()
	for range 2 {
		w.cameHome(before, set.Rollout())
	}
	w.Step("all are deleted at once")
	w.cameHome(before, set.Recreate())
}

func pinModes(w *World) {
	for _, mode := range []string{"nominate", "require", "prefer"} {
		w.Step("%s: deleted and back home", mode)
		set := w.Echoserver(mode, nil, 3, Pin(mode))
		before := set.Ready()
		w.published(before)
		after := set.Recreate()
		w.cameHome(before, after)
		for name, p := range after {
			if p.Annotations[pinnedNode] != p.Spec.NodeName || !strings.Contains(p.Annotations[pinReason], mode) {
				w.Fatalf("the annotations of %s are %v", name, p.Annotations)
			}
		}
	}
	w.Step("none: no mark but the label")
	set := w.Echoserver("none", nil, 1, Pin("none"))
	set.Recreate()
	for name, p := range set.Pods() {
		if _, pinned := p.Annotations[pinnedNode]; pinned || p.Labels[retained] == "" {
			w.Fatalf("%s has the annotations %v and the labels %v", name, p.Annotations, p.Labels)
		}
	}
}

func pinShortLife(w *World) {
	w.Step("an echoserver is deleted a second after it was placed, five times")
	set := w.Echoserver("echoserver", nil, 1)
	const name = "echoserver-0"
	home := set.Ready()[name]
	last := home
	for range 5 {
		w.Must(w.Client.CoreV1().Pods(w.NS).Delete(w.Ctx, name, metav1.DeleteOptions{}))
		w.Eventually(time.Minute, "another is placed", func() error {
			p, err := w.Client.CoreV1().Pods(w.NS).Get(w.Ctx, name, metav1.GetOptions{})
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
		if last.Spec.NodeName != home.Spec.NodeName {
			w.Lostf("it was on %s and is on %s: %s", home.Spec.NodeName, last.Spec.NodeName, last.Annotations[pinReason])
		}
		time.Sleep(time.Second) // its life
	}
	w.cameHome(Pods{name: home}, set.Ready())
}

func pinElsewhere(w *World) {
	for _, mode := range []string{"nominate", "prefer"} {
		set := w.Echoserver(mode, nil, 1, Pin(mode))
		for _, obstacle := range []struct {
			name  string
			place func(*bed.Node) (undo func())
			says  string
		}{
			{"cordoned", w.Cordon, "is cordoned"},
			{"tainted", func(n *bed.Node) func() { return w.Taint(n, "leasehold.dev/e2e", "x", corev1.TaintEffectNoSchedule) }, "has the taint"},
		} {
			before := set.Ready()
			w.published(before)
			home := w.NodeOf(before[mode+"-0"])
			w.Step("%s: its node is %s, so it runs elsewhere at once", mode, obstacle.name)
			undo := obstacle.place(home)
			set.Delete(before)
			p := w.moved(before, set.ReadyBut(before), mode+"-0")
			undo()
			w.SaidOf(p, "PinNotPossible", home.Name, obstacle.says)
			w.SaidOf(p, "AddressChanged", home.Name, obstacle.says)
		}
	}
}

// hold is somebody else's gate.
const hold = "example.com/hold"

// slot is a resource of which a scenario gives each node one.
const slot = "leasehold.dev/e2e-slot"

// slots gives every node one slot until the scenario ends.
func (w *World) slots() {
	for _, name := range w.Bed.NodeNames() {
		patch := func(value string) {
			data := fmt.Sprintf(`{"status":{"capacity":{%q:%s},"allocatable":{%q:%s}}}`, slot, value, slot, value)
			_, err := w.Client.CoreV1().Nodes().Patch(w.Ctx, name, types.MergePatchType, []byte(data), metav1.PatchOptions{}, "status")
			w.Must(err)
		}
		patch(`"1"`)
		w.Cleanup(func() { patch("null") })
	}
}

func pinFull(w *World) {
	w.slots()
	polite := w.Polite()
	for _, mode := range []string{"nominate", "prefer"} {
		w.Step("%s: its node is taken by another meanwhile; it preempts nobody, and somebody else holds it for a while", mode)
		set := w.Echoserver(mode, nil, 1, Pin(mode), Needing(slot), polite)
		before := set.Ready()
		w.published(before)
		name, home := mode+"-0", w.NodeOf(before[mode+"-0"])
		set.Scale(0)
		filler := w.Echoserver("filler-"+mode, home, 1, KeptFor(""), Needing(slot))
		set.gateBy(hold)
		set.Scale(1)
		set.heldFor(name, home)
		w.ungate(name, hold)
		p := w.moved(before, set.Ready(), name)
		w.SaidOf(p, "AddressChanged", home.Name, "did not pass the scheduler's filters")
		filler.Scale(0)
		set.Scale(0)
	}

	w.Step("require: somebody else holds it for longer than the timeout, and then its node is full")
	set := w.Echoserver("require", nil, 1, Pin("require"), Needing(slot), polite)
	const name = "require-0"
	before := set.Ready()
	w.published(before)
	home := w.NodeOf(before[name])
	set.Scale(0)
	filler := w.Echoserver("filler", home, 1, KeptFor(""), Needing(slot))
	set.gateBy(hold)
	set.Scale(1)
	set.heldFor(name, home)
	time.Sleep(pastTimeout)
	w.ungate(name, hold)
	waiting := set.waits(name, before)
	w.Step("there is room before the timeout")
	filler.Scale(0)
	after := set.Ready()
	w.cameHome(before, after)
	if after[name].UID != waiting.UID {
		w.Fatalf("the pod that waited is not the one that came home")
	}
	w.Step("its node is full once more, and stays so")
	w.published(after)
	set.Scale(0)
	filler.Scale(1)
	filler.Ready()
	set.Scale(1)
	set.heldFor(name, home)
	w.ungate(name, hold)
	waiting = set.waits(name, after)
	w.SaidOf(waiting, "PodEvicted", home.Name, "Insufficient "+slot)
	w.Eventually(time.Minute, "another pod is held", func() error {
		if p, found := set.Pods()[name]; !found || p.UID == waiting.UID {
			return errors.New("there is none")
		}
		return nil
	})
	w.ungate(name, hold)
	p := w.moved(after, set.Ready(), name)
	w.SaidOf(p, "AddressChanged", home.Name, "was evicted")
}

// pastTimeout is longer than the timeout that the bed's manager has for required pods.
const pastTimeout = 15 * time.Second

// heldFor waits until a pod is there, pinned to its home and held by somebody.
func (s *Set) heldFor(name string, home *bed.Node) {
	s.w.Eventually(time.Minute, name+" is held", func() error {
		p, found := s.Pods()[name]
		if !found || p.Annotations[pinnedNode] != home.Name || len(p.Spec.SchedulingGates) == 0 {
			return fmt.Errorf("its annotations are %v", p.Annotations)
		}
		return nil
	})
}

// waits waits until the scheduler finds no place for a pod that replaces another, and returns it.
func (s *Set) waits(name string, old Pods) corev1.Pod {
	var waiting corev1.Pod
	s.w.Eventually(time.Minute, "the new pod waits", func() error {
		p, found := s.Pods()[name]
		switch {
		case !found || p.UID == old[name].UID:
			return errors.New("there is none")
		case p.Spec.NodeName != "":
			s.w.Fatalf("it was sent to %s: %s", p.Spec.NodeName, p.Annotations[pinReason])
		case !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Reason == corev1.PodReasonUnschedulable }):
			return errors.New("the scheduler has not looked at it")
		}
		waiting = p
		return nil
	})
	return waiting
}

// gateBy adds a gate to the template.
func (s *Set) gateBy(name string) {
	patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"schedulingGates":[{"name":%q}]}}}}`, name)
	_, err := s.w.Client.AppsV1().StatefulSets(s.w.NS).Patch(s.w.Ctx, s.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	s.w.Must(err)
}

// ungate takes a gate off a pod.
func (w *World) ungate(pod, gate string) {
	patch := fmt.Sprintf(`{"spec":{"schedulingGates":[{"$patch":"delete","name":%q}]}}`, gate)
	_, err := w.Client.CoreV1().Pods(w.NS).Patch(w.Ctx, pod, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	w.Must(err)
}

func pinNodeDead(w *World) {
	w.Step("six echoservers start on one node")
	n := w.Node(1)
	sets := map[string]*Set{}
	befores := map[string]Pods{}
	for _, mode := range []string{"nominate", "prefer", "require"} {
		for _, end := range []string{"dead", "gone"} {
			name := mode + "-" + end
			sets[name] = w.Echoserver(name, n, 1, Pin(mode))
			befores[name] = sets[name].Ready()
			w.published(befores[name])
			sets[name].anywhere()
		}
	}
	w.Step("%s dies; the pods are given up", n.Name)
	w.Must(n.Stop(w.Ctx, bed.Kubelet))
	w.Cleanup(func() {
		w.Must(n.StartKubelet(w.Ctx))
		w.WaitNode(n, time.Now())
		w.RestartAgent(n) // its token names the node that was deleted
	})
	w.Eventually(time.Minute, "the cluster misses the node", func() error {
		node, err := w.Client.CoreV1().Nodes().Get(w.Ctx, n.Name, metav1.GetOptions{})
		w.Must(err)
		if bed.NodeReady(node) {
			return errors.New("it is still Ready")
		}
		return nil
	})
	runs := func(name, why string) {
		p := w.moved(befores[name], sets[name].ReadyBut(befores[name]), name+"-0")
		w.SaidOf(p, "AddressChanged", n.Name, why)
	}
	for _, name := range []string{"require-dead", "nominate-dead", "prefer-dead"} {
		sets[name].ForceDelete(befores[name])
	}
	waiting := sets["require-dead"].waits("require-dead-0", befores["require-dead"])
	runs("nominate-dead", "is not Ready")
	runs("prefer-dead", "is not Ready")
	w.Step("the required one runs elsewhere after the timeout")
	w.SaidOf(waiting, "PodEvicted", n.Name, "is not Ready")
	runs("require-dead", "was evicted")
	w.Step("its object is deleted as well: no pod waits")
	w.Must(w.Client.CoreV1().Nodes().Delete(w.Ctx, n.Name, metav1.DeleteOptions{}))
	for _, mode := range []string{"require", "nominate", "prefer"} {
		sets[mode+"-gone"].ForceDelete(befores[mode+"-gone"])
	}
	for _, mode := range []string{"require", "nominate", "prefer"} {
		runs(mode+"-gone", "is gone")
	}
}

// anywhere takes the affinity off the template: the next pods may run on any node.
func (s *Set) anywhere() {
	_, err := s.w.Client.AppsV1().StatefulSets(s.w.NS).Patch(s.w.Ctx, s.Name, types.StrategicMergePatchType,
		[]byte(`{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null},"template":{"spec":{"affinity":null}}}}`), metav1.PatchOptions{})
	s.w.Must(err)
}

func pinRequire(w *World) {
	set := w.Echoserver("echoserver", nil, 1, Pin("require"))
	const name = "echoserver-0"
	before := set.Ready()
	w.published(before)
	home := w.NodeOf(before[name])
	w.Step("its node is cordoned: the new pod waits, and comes home when the node takes pods again")
	uncordon := w.Cordon(home)
	set.Delete(before)
	set.waits(name, before)
	uncordon()
	second := set.ReadyBut(before)
	w.cameHome(before, second)

	w.Step("the node stays cordoned: after a while it runs elsewhere")
	w.published(second)
	uncordon = w.Cordon(home)
	set.Delete(second)
	waiting := set.waits(name, second)
	third := set.ReadyBut(Pods{name: waiting})
	p := w.moved(second, third, name)
	w.SaidOf(waiting, "PodEvicted", home.Name, "is cordoned")
	w.SaidOf(p, "AddressChanged", home.Name, "was evicted")
	uncordon()
	w.Step("and stays there")
	w.published(third)
	set.Delete(third)
	w.cameHome(third, set.ReadyBut(third))

	w.Step("a bare pod that nobody would make again waits on")
	bare := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "bare", Annotations: map[string]string{Window: "10", pinMode: "require"}},
		Spec: w.echoserver("bare", nil, 1).Spec.Template.Spec}
	create := func() *corev1.Pod {
		p, err := w.Client.CoreV1().Pods(w.NS).Create(w.Ctx, bare.DeepCopy(), metav1.CreateOptions{})
		w.Must(err)
		return p
	}
	create()
	first := w.running("bare")
	w.published(Pods{"bare": first})
	home = w.NodeOf(first)
	uncordon = w.Cordon(home)
	w.Must(w.Client.CoreV1().Pods(w.NS).Delete(w.Ctx, "bare", metav1.DeleteOptions{}))
	w.Eventually(time.Minute, "it is gone", func() error {
		_, err := w.Client.CoreV1().Pods(w.NS).Get(w.Ctx, "bare", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.New("it is there")
	})
	again := create()
	time.Sleep(pastTimeout)
	p2, err := w.Client.CoreV1().Pods(w.NS).Get(w.Ctx, "bare", metav1.GetOptions{})
	w.Must(err)
	if p2.UID != again.UID || p2.Spec.NodeName != "" {
		w.Fatalf("it is on %q, and was made %s", p2.Spec.NodeName, p2.CreationTimestamp)
	}
	uncordon()
	w.cameHome(Pods{"bare": first}, Pods{"bare": w.running("bare")})
}

// running waits until a pod is Ready.
func (w *World) running(name string) corev1.Pod {
	var pod corev1.Pod
	w.Eventually(time.Minute, name+" is Ready", func() error {
		p, err := w.Client.CoreV1().Pods(w.NS).Get(w.Ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod = *p; !ready(pod) {
			return fmt.Errorf("it is %s, with the gates %v", p.Status.Phase, p.Spec.SchedulingGates)
		}
		return nil
	})
	return pod
}

func pinEvicted(w *World) {
	w.Step("an echoserver is evicted from a node that is not cordoned: somebody wants it elsewhere")
	set := w.Echoserver("echoserver", nil, 1)
	const name = "echoserver-0"
	before := set.Ready()
	w.published(before)
	w.Must(w.Client.PolicyV1().Evictions(w.NS).Evict(w.Ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.NS}}))
	after := set.ReadyBut(before)
	if reason := after[name].Annotations[pinReason]; !strings.HasPrefix(reason, "Evicted: ") {
		w.Fatalf("the reason is %q", reason)
	}
	w.SaidOf(after[name], "PinNotPossible", "it was evicted from "+before[name].Spec.NodeName)
	w.Step("deleted, it comes back again")
	w.published(after)
	w.cameHome(after, set.Recreate())
}

func pinManagerAway(w *World) {
	set := w.Echoserver("echoserver", nil, 3)
	before := set.Ready()
	w.Step("all managers are stopped: pods start unpinned")
	back := w.WithoutManager()
	set.Delete(before)
	after := set.ReadyBut(before)
	for name, p := range after {
		if p.Annotations[pinReason] != "" {
			w.Fatalf("%s has the annotations %v", name, p.Annotations)
		}
	}
	w.Step("they are back: pods come home again")
	back()
	w.published(after)
	set.Delete(after)
	w.cameHome(after, set.ReadyBut(after))
}

// handmade creates a pod as it is between gate and nomination. The webhook does not care for it, for it asks for no window.
func (w *World) handmade(name string, n *bed.Node, options ...Option) {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{retained: "true"},
		Annotations: map[string]string{pinnedNode: n.Name}}, Spec: w.echoserver(name, nil, 1, append(options, GatedBy(gate))...).Spec.Template.Spec}
	_, err := w.Client.CoreV1().Pods(w.NS).Create(w.Ctx, &p, metav1.CreateOptions{})
	w.Must(err)
	w.Cleanup(w.Clear)
}

func pinFrozen(w *World) {
	managers := w.Managers()
	if len(managers) != 2 {
		w.Fatalf("there are %d managers", len(managers))
	}
	w.Step("one manager is frozen: the other lifts the gates of both, and nominates")
	resume := w.Freeze(managers[0])
	for i := range w.Bed.NodeNames() {
		n := w.Node(i + 1)
		name := "taken-over-" + n.Name
		w.handmade(name, n)
		if p := w.running(name); p.Spec.NodeName != n.Name {
			w.Fatalf("it is on %s, and %s was nominated", p.Spec.NodeName, n.Name)
		}
	}
	w.Step("pods are recreated meanwhile; each starts")
	set := w.Echoserver("echoserver", nil, 6)
	set.Recreate()
	set.Recreate()

	w.Step("both are frozen: pods that ask them start all the same, a gate waits")
	resumeOther := w.Freeze(managers[1])
	w.handmade("waits", w.Node(1))
	set.Recreate()
	p, err := w.Client.CoreV1().Pods(w.NS).Get(w.Ctx, "waits", metav1.GetOptions{})
	w.Must(err)
	if len(p.Spec.SchedulingGates) == 0 {
		w.Fatalf("its gate is gone")
	}
	w.Step("one goes on, and lifts it")
	resumeOther()
	w.running("waits")
	resume()
}

func pinLiftGates(w *World) {
	managers := w.Managers()
	w.Step("all managers are frozen, and a pod waits with a gate: lift-gates lifts it")
	for _, m := range managers {
		w.Freeze(m)
	}
	w.handmade("waits", w.Node(1))
	w.handmade("held", w.Node(1), GatedBy(hold))
	bin, err := w.Bed.Build(w.Ctx, bed.Program{Module: ".", Package: "cmd/leasehold-manager"})
	w.Must(err)
	out, err := w.Bed.Machine("control").Run(w.Ctx, bin, "lift-gates", "--kubeconfig="+w.Bed.Kubeconfig())
	if err != nil {
		w.Fatalf("%v\n%s", err, out)
	}
	w.running("waits")
	held, err := w.Client.CoreV1().Pods(w.NS).Get(w.Ctx, "held", metav1.GetOptions{})
	w.Must(err)
	if gates := held.Spec.SchedulingGates; len(gates) != 1 || gates[0].Name != hold {
		w.Fatalf("a pod that somebody else holds has the gates %v", gates)
	}
	w.ungate("held", hold)
	w.running("held")
}

func pinUninstall(w *World) {
	w.Step("a pod waits with our gate and another's")
	w.handmade("held", w.Node(1), GatedBy(hold))
	w.Step("the managers are removed in the order of docs/operations.md")
	w.Cleanup(func() {
		w.Kubectl("apply", "-f", filepath.Join(w.Bed.Repo, "daemonset/manager/webhook.yaml"))
		w.Must(w.Bed.WaitDeployed(w.Ctx, time.Minute))
		w.Eventually(time.Minute, "the webhook is asked again", w.webhookAnswers)
	})
	w.Kubectl("delete", "mutatingwebhookconfiguration", bed.Manager)
	w.Kubectl("--namespace="+bed.System, "scale", "deployment", bed.Manager, "--replicas=0")
	w.Cleanup(func() { w.Kubectl("--namespace="+bed.System, "scale", "deployment", bed.Manager, "--replicas=2") })
	w.Kubectl("--namespace="+bed.System, "wait", "--for=delete", "pod", "--selector=app.kubernetes.io/name="+bed.Manager, "--timeout=60s")
	w.Step("before its rights go, the last one has lifted the gate that nobody else would")
	held, err := w.Client.CoreV1().Pods(w.NS).Get(w.Ctx, "held", metav1.GetOptions{})
	w.Must(err)
	if gates := held.Spec.SchedulingGates; len(gates) != 1 || gates[0].Name != hold {
		w.Fatalf("it has the gates %v", gates)
	}
}

func pinCertificate(w *World) {
	const name = "leasehold-manager"
	hooks := w.Client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	caBundle := func() string {
		config, err := hooks.Get(w.Ctx, name, metav1.GetOptions{})
		w.Must(err)
		return string(config.Webhooks[0].ClientConfig.CABundle)
	}
	good := caBundle()
	w.Step("somebody writes another CA into the webhook configuration")
	w.Kubectl("patch", "mutatingwebhookconfiguration", name, "--type=json", "-p", `[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`)
	w.Eventually(time.Minute, "it is right again", func() error {
		if caBundle() != good {
			return errors.New("it is not")
		}
		return nil
	})
	w.Step("the Secret is emptied: there are another CA and another certificate, and every manager serves it")
	w.Kubectl("--namespace="+bed.System, "patch", "secret", name, "--type=json", "-p", `[{"op":"remove","path":"/data"}]`)
	w.Eventually(time.Minute, "the CA changes", func() error {
		if now := caBundle(); now == good || now == "" {
			return errors.New("it has not")
		}
		return nil
	})
	w.Eventually(time.Minute, "the webhook is asked each time", w.webhookAnswers)
}

// webhookAnswers reports whether the webhook is asked for twenty pods in a row.
func (w *World) webhookAnswers() error {
	probe := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "probe", Annotations: map[string]string{Window: "10"}},
		Spec: w.echoserver("probe", nil, 1).Spec.Template.Spec}
	for range 20 {
		p, err := w.Client.CoreV1().Pods(w.NS).Create(w.Ctx, probe.DeepCopy(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		w.Must(err)
		if p.Annotations[pinReason] == "" {
			return errors.New("once it was not")
		}
	}
	return nil
}

// table reads a table of pkg/policy: words in quotes, and what they mean.
func (w *World) table(name string) map[string]string {
	data, err := os.ReadFile(filepath.Join(w.Bed.Repo, "pkg/policy/testdata", name))
	w.Must(err)
	rows := map[string]string{}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		quoted, err := strconv.QuotedPrefix(line)
		w.Must(err)
		word, err := strconv.Unquote(quoted)
		w.Must(err)
		rows[word] = strings.TrimSpace(line[len(quoted):])
	}
	return rows
}

func pinWords(w *World) {
	w.Step("every word of the tables that the parsers are tested by")
	for annotation, table := range map[string]map[string]string{Window: w.table("windows.txt"), pinMode: w.table("pins.txt")} {
		for word, means := range table {
			set := w.echoserver("words", nil, 1)
			set.Spec.Template.Annotations = map[string]string{annotation: word}
			_, err := w.Client.AppsV1().StatefulSets(w.NS).Create(w.Ctx, &set, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if (err != nil) != (means == "error") {
				w.Fatalf("%s: %q means %s, and the API server says %v", annotation, word, means, err)
			}
		}
	}
	w.Step("a StatefulSet with a window of \"ten\"")
	manifest, err := os.ReadFile(filepath.Join(w.Bed.Repo, "test/e2e/manifests/echoserver.yaml"))
	w.Must(err)
	w.Step("%s", w.Refused(strings.Replace(string(manifest), `duration: "10"`, "duration: ten", 1),
		"reserved-ip-duration", `"ten" is not a window`, `want whole minutes ("10")`, `"90s", "24h"`, `"forever"`))

	w.Step("every kind of template, and a pod")
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
			template, err := json.Marshal(object{"metadata": object{"labels": object{"a": "b"}, "annotations": object{Window: window}},
				"spec": object{"restartPolicy": map[bool]string{true: "Never", false: "Always"}[strings.HasSuffix(kind.kind, "Job")],
					"containers": []any{object{"name": "c", "image": "none"}}}})
			w.Must(err)
			return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"words"},"spec":%s}`, kind.api, kind.kind,
				fmt.Sprintf(kind.spec, template))
		}
		w.Refused(object("10 m"), `"10 m" is not a window`)
		out, err := w.kubectl(object("10"), "create", "--dry-run=server", "-f", "-")
		warned := strings.Contains(out, "Warning") && strings.Contains(out, "the pods of a "+kind.kind+" get new names")
		if err != nil || warned != (kind.kind != "StatefulSet") {
			w.Fatalf("%s: %v %s", kind.kind, err, out)
		}
	}
	w.Refused(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"words","annotations":{"`+pinMode+`":"must"}},"spec":{"containers":[{"name":"c","image":"none"}]}}`,
		`"must" is not a pin mode; want "nominate", "require", "prefer" or "none"`)
	w.Refused(`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+w.NS+`","labels":{"`+pinMode+`":"must"}}}`,
		`label leasehold.dev/pin: "must" is not a pin mode`)
}

func pinConfined(w *World) {
	set := w.Echoserver("echoserver", w.Node(3), 1)
	w.published(set.Ready())
	w.handmade("held", w.Node(3), GatedBy(hold))
	pod := []string{"patch", "pod", "echoserver-0"}
	status := append(slices.Clone(pod), "--subresource=status")
	reservation := w.reservation("echoserver-0", w.Node(3))
	ipr := []string{"patch", "ipreservation", reservation.Metadata.Name, "--type=merge"}
	other := strings.ReplaceAll(w.Kubectl("--namespace="+w.NS, "get", "ipreservation", reservation.Metadata.Name, "-o", "json"), reservation.Metadata.Name, "another")
	// Somebody who may do anything but is no more trusted than the manager: its name, and the rights of an administrator.
	asManager := []string{"--as=system:serviceaccount:leasehold-system:leasehold-manager", "--as-group=system:masters"}
	w.Step("what the manager's account may not do")
	for _, act := range []struct {
		args []string
		last string // the patch, or what is on standard input
		says string
	}{
		{[]string{"delete", "pod", "echoserver-0"}, "", "may only delete pods that are not scheduled"},
		{pod, `{"metadata":{"labels":{"a":"b"}}}`, "may only change its own annotations"},
		{pod, `{"metadata":{"annotations":{"a":"b"}}}`, "may only change its own annotations"},
		{pod, `{"metadata":{"finalizers":["a.b/c"]}}`, "may only change its own annotations"},
		{pod, `{"spec":{"containers":[{"name":"echoserver","image":"x"}]}}`, "may only remove its own scheduling gate"},
		{pod, `{"spec":{"activeDeadlineSeconds":1}}`, "may only remove its own scheduling gate"},
		{append(slices.Clone(pod), "--type=json"), `[{"op":"add","path":"/spec/tolerations/-","value":{"operator":"Exists"}}]`, "may only remove its own scheduling gate"},
		{[]string{"patch", "pod", "held"}, `{"spec":{"schedulingGates":[{"$patch":"delete","name":"` + hold + `"}]}}`, "may only remove its own scheduling gate"},
		{status, `{"status":{"phase":"Failed"}}`, "may only change the nominated node"},
		{status, `{"status":{"resize":"Proposed"}}`, "may only change the nominated node"},
		{status, `{"status":{"observedGeneration":99}}`, "may only change the nominated node"},
		{status, `{"status":{"containerStatuses":null}}`, "may only change the nominated node"},
		{ipr, `{"spec":{"release":"` + reservation.Status.ID + `"}}`, "may not change the spec of a reservation"},
		{ipr, `{"metadata":{"labels":{"a":"b"}}}`, "may only change its own annotations"},
		{append(slices.Clone(ipr), "--subresource=status"), `{"status":{"podUID":"another"}}`, "only the agent of the node may change the status"},
		{[]string{"delete", "ipreservation", reservation.Metadata.Name}, "", "must set the precondition uid"},
		{[]string{"create", "-f", "-"}, other, "may not create pods or reservations"},
		{[]string{"create", "-f", "-"}, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"made"},"spec":{"containers":[{"name":"c","image":"none"}]}}`,
			"may not create pods or reservations"},
	} {
		args, stdin := act.args, act.last
		if args[0] == "patch" {
			args, stdin = append(slices.Clone(args), "-p", act.last), ""
		}
		out, err := w.kubectl(stdin, append(slices.Clone(args), asManager...)...)
		if err == nil || !strings.Contains(out, act.says) {
			w.Fatalf("kubectl %s: %v %s", strings.Join(args, " "), err, out)
		}
	}
	w.Step("it may delete the reservation that it has looked at; a living agent publishes it again")
	options := fmt.Sprintf(`{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":%q}}`, reservation.Metadata.UID)
	path := "/apis/ipam.leasehold.dev/v1alpha1/namespaces/" + w.NS + "/ipreservations/" + reservation.Metadata.Name
	if out, err := w.kubectl(options, append([]string{"delete", "--raw=" + path, "-f", "-"}, asManager...)...); err != nil {
		w.Fatalf("kubectl delete: %v %s", err, out)
	}
	w.published(set.Pods())
}
