package scenarios

import (
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// reserveAs is the annotation with a reservation name.
const reserveAs = "leasehold.dev/reserve-as"

// ReservedAs sets a window of ten minutes and a reservation name.
func ReservedAs(name string) Option {
	return func(template *corev1.PodTemplateSpec) {
		template.Annotations[Window], template.Annotations[reserveAs] = "10", name
		seconds := int64(1)
		template.Spec.TerminationGracePeriodSeconds = &seconds
	}
}

// Named creates a Deployment with a strategy whose pods have a reservation name, its own unless an
// option sets another one, and waits until it runs.
func (t *Test) Named(name string, n *cluster.Node, replicas int, strategy appsv1.DeploymentStrategy,
	options ...Option) *Set {
	s := t.deployment(name, n, replicas, strategy, append([]Option{ReservedAs(name)}, options...)...)
	s.Ready()
	return s
}

// preferring makes a template's pods start on a node if it takes them.
func preferring(n *cluster.Node) Option {
	return func(template *corev1.PodTemplateSpec) {
		template.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
				{Weight: 100, Preference: named(n)}}}}
	}
}

var recreateStrategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}

// unavailable is a rolling update that starts no pod before another one is being deleted.
func unavailable(maxUnavailable int) appsv1.DeploymentStrategy {
	surge, most := intstr.FromInt32(0), intstr.FromInt(maxUnavailable)
	return appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &most}}
}

// addressSet returns the addresses of pods, whichever pod has which, sorted.
func addressSet(pods Pods) string {
	var all []string
	for _, p := range pods {
		all = append(all, addresses(p))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// sameSet ends the scenario if pods have other addresses than their predecessors, whichever pod has
// which.
func (t *Test) sameSet(what string, before, after Pods) {
	if addressSet(before) != addressSet(after) {
		t.notKept(what, before, after)
	}
}

// notKept ends the scenario because of the addresses that pods have, and says why they have them.
func (t *Test) notKept(what string, before, after Pods) {
	var reasons []string
	for _, p := range after {
		reasons = append(reasons, fmt.Sprintf("%s on %s after %s: %s", p.Name, p.Spec.NodeName, startedAfter(p),
			p.Annotations[pinReason]))
	}
	t.Fatalf("%s: the pods had %s and have %s (%s)", what, addressSet(before), addressSet(after),
		strings.Join(reasons, "; "))
}

// launcher creates a pod as virt-controller creates those of a virtual machine: with a generated
// name, and without a controller that would recreate it.
func (t *Test) launcher(n *cluster.Node) string {
	pod := t.bare("launcher", n, ReservedAs("fedora"))
	pod.Name, pod.GenerateName = "", "virt-launcher-fedora-"
	return t.createPod(pod).Name
}

// relaunch deletes a pod and creates the next one when it is gone.
func (t *Test) relaunch(name string, n *cluster.Node) string {
	t.Must(t.Client.CoreV1().Pods(t.NS).Delete(t.Ctx, name, metav1.DeleteOptions{}))
	t.gone("pod/" + name)
	return t.launcher(n)
}

// recreateNamed recreates the pod of a Deployment and one of a virtual machine, and ends the
// scenario if one of them gets another address.
func (t *Test) recreateNamed(rounds int, n *cluster.Node) {
	set := t.Named("registry", n, 1, recreateStrategy)
	vm := t.launcher(n)
	before, machine := set.Ready(), Pods{"": t.running(vm)}
	for i := range rounds {
		old := set.Ready()
		set.changeTemplate()
		vm = t.relaunch(vm, n)
		what := fmt.Sprintf("recreation %d of %d", i+1, rounds)
		t.sameSet("the Deployment, "+what, before, set.ReadyBut(old))
		t.sameSet("the virtual machine, "+what, machine, Pods{"": t.running(vm)})
	}
	t.Step("the Deployment's pod had %s, and the virtual machine's %s, %d times of %d", addressSet(before),
		addressSet(machine), rounds, rounds)
	for _, p := range set.Ready() {
		t.EventOf(p, "AddressKept", `as "registry"`)
	}
}

func namedRecreate(t *Test) {
	t.Step("a Deployment of one pod (Recreate) and a pod like a virtual machine's start on any node")
	t.recreateNamed(20, nil)
	t.Step("the reservations show the name")
	out := t.Kubectl("--namespace="+t.NS, "get", "ipr")
	header, _, _ := strings.Cut(out, "\n")
	if !strings.Contains(header, "FOR") || !strings.Contains(out, "registry") || !strings.Contains(out, "fedora") {
		t.Fatalf("kubectl get ipr shows\n%s", out)
	}
}

func namedRollout(t *Test) {
	t.Step("a Deployment of three pods with maxSurge 0 is rolled out five times, all pods at once or one by one")
	set := t.Named("registry", nil, 3, unavailable(3))
	before := set.Ready()
	for i := range 5 {
		if i == 3 {
			set.patch(`{"spec":{"strategy":{"rollingUpdate":{"maxUnavailable":1}}}}`)
		}
		began := time.Now()
		t.sameSet(fmt.Sprintf("rollout %d", i+1), before, set.Rollout())
		t.Step("rollout %d took %.0f s", i+1, time.Since(began).Seconds())
	}
	t.Step("scaled to 1 and back to 3")
	t.published(set.Ready())
	set.Scale(1)
	t.publishedAsHeld(2)
	t.sameSet("scaled", before, scaledTo(set, 3))
	t.Step("another Deployment has the same name by mistake")
	other := t.Named("mirror", nil, 2, recreateStrategy, ReservedAs("registry"))
	both := merge(set.Ready(), other.Ready())
	if all := strings.Fields(addressSet(both)); len(slices.Compact(all)) != len(both) {
		t.Fatalf("an address is in two pods: %v", all)
	}
	for _, p := range other.Ready() {
		t.EventOf(p, "ReservationShared", "Deployment mirror and Deployment registry", `"registry"`)
	}
}

// namedResized rolls Deployments out that become larger or smaller in the same update, with three
// managers and beside reviews of pods that nobody creates. As many addresses are kept as there are
// pods for them, and no pod waits for the address of another one that stays.
func namedResized(t *Test) {
	t.scaleManagers("3")
	t.Must(t.Cluster.WaitDeployed(t.Ctx))
	for _, c := range []struct {
		name     string
		strategy appsv1.DeploymentStrategy
		from, to int
	}{
		{"recreate-grows", recreateStrategy, 3, 6},
		{"recreate-shrinks", recreateStrategy, 6, 3},
		{"recreate-stays", recreateStrategy, 4, 4},
		{"surge-grows", unavailable(3), 3, 6},
		{"surge-shrinks", unavailable(3), 6, 3},
		{"surge-one-by-one", unavailable(1), 3, 5},
	} {
		set := t.Named(c.name, nil, c.from, c.strategy)
		before := set.Ready()
		t.published(before)
		stop := t.forgedReviews(before)
		set.patch(`{"spec":{"replicas":%d,"template":{"metadata":{"annotations":{"rollout":%q}}}}}`, c.to, time.Now())
		set.size = c.to
		after := set.ReadyBut(before)
		answered := stop()
		kept, slowest := 0, time.Duration(0)
		for _, p := range after {
			slowest = max(slowest, startedAfter(p))
		}
		// While it replaces pods one by one, a Deployment may create some of the former template.
		// Those have fresh addresses of the name, which then count as well as the first ones.
		most := min(c.from, c.to)
		t.Within(30*time.Second, fmt.Sprintf("%s: %d pods keep an address", c.name, most), func() error {
			kept = 0
			for _, p := range after {
				kept += min(len(t.Events(string(p.UID), "AddressKept")), 1)
			}
			if kept < most {
				return fmt.Errorf("%d do, and had %s", kept, addressSet(before))
			}
			return nil
		})
		t.Step("%s: %d of %d pods keep an address, the slowest was Ready after %s, beside %d forged reviews", c.name,
			kept, c.to, slowest, answered)
		if slowest > time.Minute || answered == 0 {
			t.notKept(c.name+": not within a minute, or no forged review was answered", before, after)
		}
		set.Scale(0)
	}
}

// startedAfter returns how long after its creation a pod became Ready.
func startedAfter(p corev1.Pod) time.Duration {
	return readiness(p).LastTransitionTime.Sub(p.CreationTimestamp.Time)
}

// namedWithoutCapability has flannel's own configuration, with which the plugin gets no
// annotations.
func namedWithoutCapability(t *Test) {
	n := t.Node(1)
	network := n.DefaultNetwork()
	network.Type, network.Stock = "flannel", true
	t.Step("%s has flannel's own configuration; leasehold is installed as host-local", n.Name)
	t.Networks(n, network)
	t.put(n, cniBin+"/leasehold", hostLocal)
	t.Cleanup(func() {
		t.Clear()
		t.put(n, t.Cluster.Upstream("host-local"), hostLocal)
	})
	t.recreateNamed(10, n)
	t.Step("the agent is away while a pod starts, comes back while it runs, and the next pod starts")
	back := t.WithoutAgent(n)
	set := t.Named("late", n, 1, recreateStrategy)
	before := set.Ready()
	back()
	t.noLease(n, "of the pod without its name", func(l cli.Row) bool {
		_, is := before[l.Pod]
		return is && (l.ReserveAs != "late" || l.Window != "10m0s")
	})
	t.sameSet("after a first life without the agent", before, set.Rollout())
}
