package scenarios

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// The ports of agent and manager.
const (
	agentMetrics   = "9470"
	managerMetrics = "9471"
)

// system lists leasehold's own pods of one kind that are not being deleted.
func (t *Test) system(app string) []corev1.Pod {
	list, err := t.Client.CoreV1().Pods(cluster.System).List(t.Ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=" + app})
	t.Must(err)
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
}

// Agent returns a node's agent once it is Ready.
func (t *Test) Agent(n *cluster.Node) corev1.Pod {
	var agent corev1.Pod
	t.Eventually("an agent on "+n.Name, func() error {
		for _, p := range t.system(cluster.Agent) {
			if p.Spec.NodeName == n.Name && ready(p) {
				agent = p
				return nil
			}
		}
		return errors.New("there is none that is Ready")
	})
	return agent
}

// systemPod creates a pod in leasehold's namespace, and waits until it is Ready. It is removed with
// the scenario.
func (t *Test) systemPod(pod *corev1.Pod) corev1.Pod {
	pods := t.Client.CoreV1().Pods(cluster.System)
	_, err := pods.Create(t.Ctx, pod, metav1.CreateOptions{})
	t.Must(err)
	t.Cleanup(func() { t.removeSystemPod(pod.Name) })
	var now *corev1.Pod
	t.Eventually(pod.Name+" is ready", func() error {
		now, err = pods.Get(t.Ctx, pod.Name, metav1.GetOptions{})
		if err == nil && !ready(*now) {
			err = fmt.Errorf("it is %s", now.Status.Phase)
		}
		return err
	})
	return *now
}

// Managers returns the manager's pods that are Ready.
func (t *Test) Managers() []corev1.Pod {
	return slices.DeleteFunc(t.system(cluster.Manager), func(p corev1.Pod) bool { return !ready(p) })
}

// withoutAgent is the label of a node on which the cluster's manifests run no agent.
const withoutAgent = "leasehold.dev/e2e-without-agent"

// WithoutAgent removes the agent from a node until back is called, or the scenario ends.
func (t *Test) WithoutAgent(n *cluster.Node) (back func()) {
	agent := t.Agent(n)
	unlabel := t.Label(n, withoutAgent, "")
	back = t.undo(func() {
		unlabel()
		t.Agent(n)
	})
	t.removeSystemPod(agent.Name)
	return back
}

// WithoutManager stops all managers until back is called, or the scenario ends; their
// configuration stays.
func (t *Test) WithoutManager() (back func()) {
	back = t.scaleManagers("0")
	t.Kubectl("--namespace="+cluster.System, "wait", "--for=delete", "pod",
		"--selector=app.kubernetes.io/name="+cluster.Manager, "--timeout=5m")
	return back
}

// scaleManagers scales the manager until back is called, or the scenario ends.
func (t *Test) scaleManagers(replicas string) (back func()) {
	scale := func(replicas string) {
		t.Kubectl("--namespace="+cluster.System, "scale", "deployment", cluster.Manager, "--replicas="+replicas)
	}
	back = t.undo(func() {
		scale("2")
		t.Must(t.Cluster.WaitDeployed(t.Ctx))
	})
	scale(replicas)
	return back
}

// WithoutControl stops parts of the control plane until back is called, or the scenario ends.
// After an outage of the API server a client may wait half a minute until it watches nodes again.
// Scheduler and controller manager are started anew, so that they know about a cordon at once.
func (t *Test) WithoutControl(parts ...string) (back func()) {
	back = t.undo(func() {
		if slices.Contains(parts, cluster.APIServer) {
			for _, watching := range []string{cluster.Scheduler, cluster.ControllerManager} {
				t.Must(t.Cluster.StopControl(t.Ctx, watching))
			}
		}
		t.Must(t.Cluster.RunControl(t.Ctx))
	})
	for _, part := range parts {
		t.Must(t.Cluster.StopControl(t.Ctx, part))
	}
	return back
}

// freshWatches replaces agents and managers when the scenario ends. After an outage of the API
// server it may take an agent five minutes until it watches its NodeAddressPool, in which releases
// wait.
func (t *Test) freshWatches() {
	t.Cleanup(func() {
		t.Kubectl("--namespace="+cluster.System, "rollout", "restart",
			"daemonset/"+cluster.Agent, "deployment/"+cluster.Manager)
		t.Must(t.Cluster.WaitDeployed(t.Ctx))
	})
}

// Freeze stops the processes of a pod's containers with SIGSTOP, and continues them when resume is
// called, or the scenario ends. A container that was restarted in between is not frozen.
func (t *Test) Freeze(pod corev1.Pod) (resume func()) {
	n := t.NodeOf(pod)
	containers := t.containers(pod)
	resume = t.undo(func() {
		for _, c := range containers {
			n.Machine().Run(t.Ctx, "kill", "-CONT", fmt.Sprint(c.PID)) // it may have been killed meanwhile
		}
	})
	t.Signal(pod, "STOP")
	return resume
}

// Signal sends a signal such as "STOP" to the first process of each of a pod's containers.
func (t *Test) Signal(pod corev1.Pod, signal string) {
	for _, c := range t.containers(pod) {
		t.exec(t.NodeOf(pod), "kill", "-"+signal, fmt.Sprint(c.PID))
	}
}

func (t *Test) containers(pod corev1.Pod) []inspect.Container {
	containers := t.runningContainers(t.NodeOf(pod), pod)
	if len(containers) == 0 {
		t.Fatalf("%s on %s runs no container", pod.Name, pod.Spec.NodeName)
	}
	return containers
}

// AgentMetrics reads the metrics of a node's agent.
func (t *Test) AgentMetrics(n *cluster.Node) inspect.Metrics {
	return t.metrics(t.Agent(n), agentMetrics)
}

func (t *Test) metrics(pod corev1.Pod, port string) inspect.Metrics {
	m, err := scrape(t.Ctx, t.Client, pod, port)
	t.Must(err)
	return m
}

// scrape reads the metrics of a pod through the API server.
func scrape(ctx context.Context, client *kubernetes.Clientset, pod corev1.Pod, port string) (inspect.Metrics, error) {
	data, err := client.CoreV1().Pods(pod.Namespace).ProxyGet("http", pod.Name, port, "/metrics", nil).DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	return inspect.ReadMetrics(bytes.NewReader(data))
}

func containsAll(text string, words []string) bool {
	for _, word := range words {
		if !strings.Contains(text, word) {
			return false
		}
	}
	return true
}

// Reservations lists what the agents have published for the scenario's pods.
func (t *Test) Reservations() []v1alpha1.IPReservation {
	list, err := t.Dynamic.Resource(v1alpha1.Resource).Namespace(t.NS).List(t.Ctx, metav1.ListOptions{})
	t.Must(err)
	var found v1alpha1.IPReservationList
	t.Must(runtime.DefaultUnstructuredConverter.FromUnstructured(list.UnstructuredContent(), &found))
	return found.Items
}

// publishedAsHeld waits until as many reservations as that are published as held.
func (t *Test) publishedAsHeld(want int) {
	t.Becomes("reservations that are published as held", want, func() any {
		isNotHeld := func(r v1alpha1.IPReservation) bool { return r.Status.State != v1alpha1.Held }
		return len(slices.DeleteFunc(t.Reservations(), isNotHeld))
	})
}

// Reservation finds the reservation of a pod on a node.
func (t *Test) Reservation(pod string, n *cluster.Node) (v1alpha1.IPReservation, bool) {
	for _, r := range t.Reservations() {
		if r.Spec.PodName == pod && r.Spec.NodeName == n.Name {
			return r, true
		}
	}
	return v1alpha1.IPReservation{}, false
}
