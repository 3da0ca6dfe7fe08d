package scenarios

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/leasehold-cni/leasehold/test/e2e/bed"
	"github.com/leasehold-cni/leasehold/test/e2e/look"
)

// A World is a running scenario: the test, the cluster, and a namespace of its own.
type World struct {
	*testing.T
	// Ctx is done at the scenario's limit. In a cleanup it is another one.
	Ctx     context.Context
	Bed     *bed.Bed
	Client  *kubernetes.Clientset
	Dynamic dynamic.Interface
	NS      string
	Long    bool

	suite      *suite
	scenario   scenario
	nodes      []string // that the scenario may use
	began      time.Time
	expectLoss bool   // the scenario has to lose an address
	lost       bool   // it lost one that should have been kept
	passed     bool   // it lost none, although it had to
	reason     string // of the first failure
}

// Step logs a step of the scenario.
func (w *World) Step(format string, args ...any) {
	w.Helper()
	w.Logf("%5.1fs  %s", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

// Errorf fails the scenario and goes on. The summary shows the first failure.
func (w *World) Errorf(format string, args ...any) {
	w.Helper()
	text := fmt.Sprintf(format, args...)
	if w.reason == "" {
		w.reason = text
	}
	w.T.Errorf("%5.1fs  %s", time.Since(w.began).Seconds(), text)
}

// Fatalf fails and ends the scenario.
func (w *World) Fatalf(format string, args ...any) {
	w.Helper()
	w.Errorf(format, args...)
	w.FailNow()
}

// Lostf ends a scenario in which an address was not kept. That is a failure, unless the plugin under test has no
// retention and the scenario depends on it.
func (w *World) Lostf(format string, args ...any) {
	w.Helper()
	if w.expectLoss {
		panic(expectedLoss(fmt.Sprintf(format, args...)))
	}
	w.lost = true
	w.Fatalf(format, args...)
}

// Must ends the scenario if err is not nil.
func (w *World) Must(err error) {
	w.Helper()
	if err != nil {
		w.Fatalf("%v", err)
	}
}

// Cleanup registers a function to call after the scenario, even if it failed. The last one is called first, each has
// two minutes, and one that fails or panics does not keep the others from being called.
func (w *World) Cleanup(f func()) {
	w.T.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(w.suite.ctx), 2*time.Minute)
		defer cancel()
		w.Ctx = ctx
		done := false
		defer func() {
			if p := recover(); p != nil {
				w.Errorf("panic in a cleanup: %v\n%s", p, debug.Stack())
			}
			if !done {
				w.suite.setUnclean()
			}
		}()
		f()
		done = true
	})
}

// Eventually calls f until it succeeds. After the limit it ends the scenario.
func (w *World) Eventually(limit time.Duration, what string, f func() error) {
	w.Helper()
	end := time.Now().Add(limit)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) || w.Ctx.Err() != nil {
			w.Fatalf("%s: timed out after %v: %v", what, limit, err)
		}
		w.Sleep(200 * time.Millisecond)
	}
}

// Sleep waits. It ends the scenario when its context is done.
func (w *World) Sleep(d time.Duration) {
	w.Helper()
	select {
	case <-w.Ctx.Done():
		w.Fatalf("out of time: %v", context.Cause(w.Ctx))
	case <-time.After(d):
	}
}

// checkOverlap fails the scenario if an address has been in two pods at once.
func (w *World) checkOverlap() {
	if text := w.suite.overlap(); text != "" {
		w.Errorf("an address was in two pods at once: %s", text)
	}
}

// verdict describes how the scenario ended.
func (w *World) verdict() string {
	switch {
	case w.passed:
		return "PASSED, NOT EXPECTED"
	case w.lost:
		return "ADDRESS LOST"
	case w.Failed():
		return "FAILED"
	case w.expectLoss:
		return "expected failure"
	}
	return "passed"
}

// Node returns the i-th node, counted from 1, or the last if there are fewer.
func (w *World) Node(i int) *bed.Node { return w.own(nodeName(w.Bed.NodeNames(), i)) }

// own returns a node that is the scenario's.
func (w *World) own(name string) *bed.Node {
	if !slices.Contains(w.nodes, name) {
		w.Fatalf("%s may be another scenario's: see on(...) in table_test.go", name)
	}
	return w.Bed.Node(name)
}

// NodeOf returns the node that a pod was sent to.
func (w *World) NodeOf(pod corev1.Pod) *bed.Node {
	if pod.Spec.NodeName == "" {
		w.Fatalf("%s has no node", pod.Name)
	}
	return w.own(pod.Spec.NodeName)
}

// NodeWith returns a node that runs a certain containerd, or nil.
func (w *World) NodeWith(containerd string) *bed.Node {
	for _, name := range slices.Backward(w.Bed.NodeNames()) {
		if n := w.Bed.Node(name); n.ContainerdVersion() == containerd {
			return w.own(name)
		}
	}
	return nil
}

// Networks gives a node other networks for the length of the scenario.
func (w *World) Networks(n *bed.Node, networks ...bed.Network) {
	w.Must(n.SetNetworks(networks...))
	w.Cleanup(func() {
		w.Clear()
		w.Must(n.SetNetworks(n.DefaultNetwork()))
		for _, network := range networks {
			if network.Name != n.DefaultNetwork().Name {
				w.Must(n.RemoveBridge(w.Ctx, network))
			}
		}
	})
}

// Clear removes the scenario's workloads and waits until their sandboxes are stopped.
func (w *World) Clear() {
	background := metav1.DeletePropagationBackground
	all := metav1.DeleteOptions{PropagationPolicy: &background}
	w.Must(w.Client.AppsV1().StatefulSets(w.NS).DeleteCollection(w.Ctx, all, metav1.ListOptions{}))
	w.Must(w.Client.AppsV1().Deployments(w.NS).DeleteCollection(w.Ctx, all, metav1.ListOptions{}))
	w.Must(w.Client.AppsV1().ReplicaSets(w.NS).DeleteCollection(w.Ctx, all, metav1.ListOptions{}))
	w.Must(w.Client.BatchV1().Jobs(w.NS).DeleteCollection(w.Ctx, all, metav1.ListOptions{}))
	second := int64(1)
	w.Eventually(90*time.Second, "the pods go", func() error {
		err := w.Client.CoreV1().Pods(w.NS).DeleteCollection(w.Ctx,
			metav1.DeleteOptions{GracePeriodSeconds: &second}, metav1.ListOptions{})
		if err != nil {
			return err
		}
		pods, err := w.Client.CoreV1().Pods(w.NS).List(w.Ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(pods.Items))
		}
		return err
	})
	w.Eventually(60*time.Second, "the sandboxes stop", func() error {
		for _, name := range w.nodes {
			sandboxes, err := look.Sandboxes(w.Ctx, w.Bed.Root(name), w.NS)
			if err != nil {
				return err
			}
			for _, s := range sandboxes {
				if s.Ready {
					return fmt.Errorf("%s still runs %s", name, s.Pod)
				}
			}
		}
		return nil
	})
	if !w.Bed.Keeps() {
		return
	}
	w.Eventually(30*time.Second, "nothing is leaked", func() error {
		for _, name := range w.nodes {
			leases, _ := w.Leases(w.Bed.Node(name))
			for _, l := range leases {
				if l.State == "Bound" {
					return fmt.Errorf("%s is bound to %s, which is gone", l.Address, l.Pod)
				}
			}
		}
		return nil
	})
}

// CheckStores has every node prove that its store is sound.
func (w *World) CheckStores() {
	if !w.Bed.Keeps() {
		return
	}
	for _, name := range w.nodes {
		out, err := w.Bed.Machine(name).Run(w.Ctx, w.Bed.Leasectl(), "check")
		if err != nil {
			w.Fatalf("the store of %s: %v\n%s", name, err, out)
		}
	}
}

// Sandbox returns the running sandbox of a pod, which is on node n.
func (w *World) Sandbox(n *bed.Node, pod corev1.Pod) look.Sandbox {
	var running look.Sandbox
	w.Eventually(30*time.Second, "a sandbox of "+pod.Name, func() error {
		for _, s := range w.sandboxes(n) {
			if s.UID == string(pod.UID) && s.Ready {
				running = s
				return nil
			}
		}
		return fmt.Errorf("%s runs none", n.Name)
	})
	return running
}

func (w *World) sandboxes(n *bed.Node) []look.Sandbox {
	sandboxes, err := look.Sandboxes(w.Ctx, n.Root(), w.NS)
	w.Must(err)
	return sandboxes
}

// Leases reads what a node's store holds for the scenario's pods. host-local has no store to read: the answer is false.
func (w *World) Leases(n *bed.Node) ([]look.Lease, bool) {
	if !w.Bed.Keeps() {
		return nil, false
	}
	all, err := look.Leases(w.Ctx, n.Machine(), w.Bed.Leasectl(), false)
	w.Must(err)
	return slices.DeleteFunc(all, func(l look.Lease) bool { return l.Namespace != w.NS }), true
}

// History reads what a node's journal says of the scenario's pods, the oldest entry first.
func (w *World) History(n *bed.Node) []look.Entry {
	all, err := look.History(w.Ctx, n.Machine(), w.Bed.Leasectl())
	w.Must(err)
	return slices.DeleteFunc(all, func(e look.Entry) bool { return e.Namespace != w.NS })
}

// LeasesAre checks that the store of a node has exactly one lease per pod interface and family, all in one state. Soft
// holds do not count: they keep an address from being given away too soon, and for nobody else. With names of pods, the
// leases of others do not count either.
func (w *World) LeasesAre(n *bed.Node, state string, count int, pods ...string) {
	leases, ok := w.Leases(n)
	if !ok {
		return
	}
	leases = slices.DeleteFunc(leases, func(l look.Lease) bool {
		return l.State == "Held" && !l.Firm || len(pods) > 0 && !slices.Contains(pods, l.Pod)
	})
	owners := map[string]string{}
	for _, l := range leases {
		if l.State != state {
			w.Fatalf("the store of %s has %s of %s as %s, want %s", n.Name, l.Address, l.Pod, l.State, state)
		}
		key := l.Network + " " + l.Pod + " " + l.Interface
		if strings.Contains(l.Address, ":") {
			key += " IPv6"
		}
		if other, ok := owners[key]; ok {
			w.Fatalf("the store of %s has %s and %s for %s", n.Name, other, l.Address, key)
		}
		owners[key] = l.Address
	}
	if len(leases) != count {
		w.Fatalf("the store of %s has %d leases for %d pods", n.Name, len(leases), count)
	}
}

// Kept ends the scenario if a pod has other addresses than before.
func (w *World) Kept(before, after Pods) {
	var lost []string
	for name, old := range before {
		if now := addresses(after[name]); now != addresses(old) {
			lost = append(lost, fmt.Sprintf("%s had %s and has %s", name, addresses(old), now))
		}
	}
	slices.Sort(lost)
	if more := len(lost) - 3; more > 0 {
		lost = append(lost[:3], fmt.Sprintf("and %d more", more))
	}
	if len(lost) > 0 {
		w.Lostf("%s", strings.Join(lost, "; "))
	}
}

func addresses(p corev1.Pod) string {
	var ips []string
	for _, ip := range p.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	return strings.Join(ips, ",")
}

// Events returns the messages of a pod's events with a reason.
func (w *World) Events(uid, reason string) []string {
	events, err := w.Client.CoreV1().Events(w.NS).List(w.Ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.uid=" + uid + ",reason=" + reason})
	w.Must(err)
	var texts []string
	for _, e := range events.Items {
		texts = append(texts, e.Message)
	}
	return texts
}

// SaidOf waits until a pod has an event of a reason whose message has all these words, and returns the message.
func (w *World) SaidOf(pod corev1.Pod, reason string, words ...string) string {
	var found string
	w.Eventually(30*time.Second, fmt.Sprintf("event %s of %s with %q", reason, pod.Name, words), func() error {
		texts := w.Events(string(pod.UID), reason)
		for _, text := range texts {
			if containsAll(text, words) {
				found = text
				return nil
			}
		}
		return fmt.Errorf("there are %q", texts)
	})
	return found
}

// WaitNode waits until a node is Ready and has said so since a moment.
func (w *World) WaitNode(n *bed.Node, since time.Time) {
	w.Eventually(90*time.Second, n.Name+" is Ready", func() error {
		lease, err := w.Client.CoordinationV1().Leases("kube-node-lease").Get(w.Ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime == nil || lease.Spec.RenewTime.Before(&metav1.MicroTime{Time: since}) {
			return fmt.Errorf("its kubelet has not reported")
		}
		node, err := w.Client.CoreV1().Nodes().Get(w.Ctx, n.Name, metav1.GetOptions{})
		if err == nil && !bed.NodeReady(node) {
			err = fmt.Errorf("it is not")
		}
		return err
	})
}
