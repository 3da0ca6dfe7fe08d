package scenarios

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/test/e2e/bed"
	"github.com/leasehold-cni/leasehold/test/e2e/look"
)

// The ports of agent and manager.
const (
	agentMetrics   = "9470"
	managerMetrics = "9471"
)

// system lists leasehold's own pods of one kind that are not on their way out.
func (w *World) system(app string) []corev1.Pod {
	list, err := w.Client.CoreV1().Pods(bed.System).List(w.Ctx, metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/name=" + app})
	w.Must(err)
	var pods []corev1.Pod
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			pods = append(pods, p)
		}
	}
	return pods
}

// Agent returns a node's agent once it is Ready.
func (w *World) Agent(n *bed.Node) corev1.Pod {
	var agent corev1.Pod
	w.Eventually(time.Minute, "an agent on "+n.Name, func() error {
		for _, p := range w.system(bed.Agent) {
			if p.Spec.NodeName == n.Name && ready(p) {
				agent = p
				return nil
			}
		}
		return errors.New("there is none that is Ready")
	})
	return agent
}

// RestartAgent replaces a node's agent by another and returns that one.
func (w *World) RestartAgent(n *bed.Node) corev1.Pod {
	old := w.Agent(n)
	w.Must(w.Client.CoreV1().Pods(bed.System).Delete(w.Ctx, old.Name, metav1.DeleteOptions{}))
	w.Eventually(time.Minute, "the agent goes", func() error {
		for _, p := range w.system(bed.Agent) {
			if p.UID == old.UID {
				return errors.New("it is there")
			}
		}
		return nil
	})
	return w.Agent(n)
}

// Managers returns the manager's pods that are Ready.
func (w *World) Managers() []corev1.Pod {
	var pods []corev1.Pod
	for _, p := range w.system(bed.Manager) {
		if ready(p) {
			pods = append(pods, p)
		}
	}
	return pods
}

// withoutAgent is the label of a node that the bed's manifests keep the agent away from.
const withoutAgent = "leasehold.dev/e2e-without-agent"

// WithoutAgent takes the agent off a node until back is called, or the scenario ends.
func (w *World) WithoutAgent(n *bed.Node) (back func()) {
	if !w.Bed.Keeps() {
		return func() {}
	}
	gone := w.Agent(n)
	unlabel := w.Label(n, withoutAgent, "")
	back = untilDone(func() {
		unlabel()
		w.Agent(n)
	})
	w.Cleanup(back)
	w.Eventually(time.Minute, "the agent goes", func() error {
		list, err := w.Client.CoreV1().Pods(bed.System).List(w.Ctx, metav1.ListOptions{
			FieldSelector: "metadata.name=" + gone.Name})
		if err == nil && len(list.Items) > 0 {
			err = errors.New("it is there")
		}
		return err
	})
	return back
}

// WithoutManager stops all managers until back is called, or the scenario ends; what they have configured stays.
func (w *World) WithoutManager() (back func()) {
	manager, err := w.Client.AppsV1().Deployments(bed.System).Get(w.Ctx, bed.Manager, metav1.GetOptions{})
	w.Must(err)
	scale := func(replicas int32) {
		patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
		_, err := w.Client.AppsV1().Deployments(bed.System).Patch(w.Ctx, bed.Manager, types.MergePatchType, []byte(patch),
			metav1.PatchOptions{})
		w.Must(err)
	}
	back = untilDone(func() {
		scale(*manager.Spec.Replicas)
		w.Must(w.Bed.WaitDeployed(w.Ctx, time.Minute))
	})
	w.Cleanup(back)
	scale(0)
	w.Eventually(time.Minute, "the managers go", func() error {
		list, err := w.Client.CoreV1().Pods(bed.System).List(w.Ctx, metav1.ListOptions{
			LabelSelector: "app.kubernetes.io/name=" + bed.Manager})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d are there", len(list.Items))
		}
		return err
	})
	return back
}

// WithoutControl stops parts of the control plane until back is called, or the scenario ends.
func (w *World) WithoutControl(parts ...string) (back func()) {
	back = untilDone(func() { w.Must(w.Bed.RunControl(w.Ctx)) })
	w.Cleanup(back)
	for _, part := range parts {
		w.Must(w.Bed.StopControl(w.Ctx, part))
	}
	return back
}

// Freeze stops the processes of a pod's containers with SIGSTOP, and lets them go on when resume is called, or the
// scenario ends. A container that was restarted in between is not frozen.
func (w *World) Freeze(pod corev1.Pod) (resume func()) {
	n := w.NodeOf(pod)
	containers := w.containers(pod)
	resume = untilDone(func() {
		for _, c := range containers {
			n.Machine().Run(w.Ctx, "kill", "-CONT", fmt.Sprint(c.PID)) // it may have been killed meanwhile
		}
	})
	w.Cleanup(resume)
	w.Signal(pod, "STOP")
	return resume
}

// Signal sends a signal such as "STOP" to the first process of each of a pod's containers.
func (w *World) Signal(pod corev1.Pod, signal string) {
	for _, c := range w.containers(pod) {
		_, err := w.NodeOf(pod).Machine().Run(w.Ctx, "kill", "-"+signal, fmt.Sprint(c.PID))
		w.Must(err)
	}
}

func (w *World) containers(pod corev1.Pod) []look.Container {
	containers := w.runningContainers(w.NodeOf(pod), pod)
	if len(containers) == 0 {
		w.Fatalf("%s on %s runs no container", pod.Name, pod.Spec.NodeName)
	}
	return containers
}

// AgentMetrics reads the metrics of a node's agent.
func (w *World) AgentMetrics(n *bed.Node) look.Metrics { return w.metrics(w.Agent(n), agentMetrics) }

// ManagerMetrics reads the metrics of one manager.
func (w *World) ManagerMetrics(manager corev1.Pod) look.Metrics {
	return w.metrics(manager, managerMetrics)
}

func (w *World) metrics(pod corev1.Pod, port string) look.Metrics {
	data, err := w.Client.CoreV1().Pods(pod.Namespace).ProxyGet("http", pod.Name, port, "/metrics", nil).DoRaw(w.Ctx)
	w.Must(err)
	m, err := look.ReadMetrics(bytes.NewReader(data))
	w.Must(err)
	return m
}

// Logs returns what a pod's container has logged since a moment.
func (w *World) Logs(pod corev1.Pod, container string, since time.Time) string {
	from := metav1.NewTime(since)
	data, err := w.Client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name,
		&corev1.PodLogOptions{Container: container, SinceTime: &from}).DoRaw(w.Ctx)
	w.Must(err)
	return string(data)
}

// Says waits until a pod's container has logged a line with all these words since a moment, and returns the line.
func (w *World) Says(pod corev1.Pod, container string, since time.Time, words ...string) string {
	var found string
	w.Eventually(30*time.Second, fmt.Sprintf("%s says %q", pod.Name, words), func() error {
		for line := range strings.Lines(w.Logs(pod, container, since)) {
			if containsAll(line, words) {
				found = strings.TrimSpace(line)
				return nil
			}
		}
		return errors.New("it does not")
	})
	return found
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
func (w *World) Reservations() []look.Reservation {
	found, err := look.Reservations(w.Ctx, w.Dynamic, w.NS)
	w.Must(err)
	return found
}

// Reservation finds the reservation of a pod on a node.
func (w *World) Reservation(pod string, n *bed.Node) (look.Reservation, bool) {
	for _, r := range w.Reservations() {
		if r.Spec.PodName == pod && r.Spec.NodeName == n.Name {
			return r, true
		}
	}
	return look.Reservation{}, false
}
