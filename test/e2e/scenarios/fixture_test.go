package scenarios

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// A Test is a running scenario: the test, the cluster, and a namespace of its own.
type Test struct {
	*testing.T
	*rig
	// Ctx is done at the scenario's limit. In a cleanup it is another one.
	Ctx context.Context
	NS  string

	suite    *suite
	scenario scenario
	nodes    []string // that the scenario may use
	began    time.Time
	reason   string // of the first failure
}

// Step logs a step of the scenario.
func (t *Test) Step(format string, args ...any) {
	t.Helper()
	t.Logf("%5.1fs  %s", time.Since(t.began).Seconds(), fmt.Sprintf(format, args...))
}

// Errorf fails the scenario and goes on. The summary shows the first failure.
func (t *Test) Errorf(format string, args ...any) {
	t.Helper()
	text := fmt.Sprintf(format, args...)
	if t.reason == "" {
		t.reason = text
	}
	t.T.Errorf("%5.1fs  %s", time.Since(t.began).Seconds(), text)
}

// Fatalf fails and ends the scenario.
func (t *Test) Fatalf(format string, args ...any) {
	t.Helper()
	t.Errorf(format, args...)
	t.FailNow()
}

// Must ends the scenario if err is not nil.
func (t *Test) Must(err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// Cleanup registers a function to call after the scenario, even if it failed. The last one is
// called first, each has five minutes, and one that fails or panics does not keep the others from
// being called.
func (t *Test) Cleanup(f func()) {
	t.T.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.suite.ctx), 5*time.Minute)
		defer cancel()
		t.Ctx = ctx
		done := false
		defer func() {
			if p := recover(); p != nil {
				t.Errorf("panic in a cleanup: %v\n%s", p, debug.Stack())
			}
			if !done {
				t.suite.setUnclean()
			}
		}()
		f()
		done = true
	})
}

// Eventually calls f until it succeeds. It ends the scenario after a time that only a failure
// reaches, however busy the machine is.
func (t *Test) Eventually(what string, f func() error) {
	t.Helper()
	t.Within(5*time.Minute, what, f)
}

// Until is Eventually for what is true or not.
func (t *Test) Until(what string, is func() bool) {
	t.Helper()
	t.Eventually(what, func() error {
		if !is() {
			return errors.New("it is not so")
		}
		return nil
	})
}

// Becomes waits until got returns what is wanted.
func (t *Test) Becomes(what string, want any, got func() any) {
	t.Helper()
	t.Eventually(fmt.Sprintf("%s: %v", what, want), func() error {
		if now := got(); !reflect.DeepEqual(now, want) {
			return fmt.Errorf("it is %v", now)
		}
		return nil
	})
}

// Within is Eventually with a limit, which is a promise or longer than usual.
func (t *Test) Within(limit time.Duration, what string, f func() error) {
	t.Helper()
	if err := machine.Poll(t.Ctx, limit, f); err != nil {
		t.Fatalf("%s: timed out: %v", what, err)
	}
}

// Sleep waits. It ends the scenario when its context is done.
func (t *Test) Sleep(d time.Duration) {
	t.Helper()
	select {
	case <-t.Ctx.Done():
		t.Fatalf("out of time: %v", context.Cause(t.Ctx))
	case <-time.After(d):
	}
}

// checkOverlap fails the scenario if an address has been in two pods at once.
func (t *Test) checkOverlap() {
	if text := t.overlap(); text != "" {
		t.Errorf("an address was in two pods at once: %s", text)
	}
}

// Node returns the i-th node, counted from 1, or the last if there are fewer.
func (t *Test) Node(i int) *cluster.Node { return t.own(nodeName(t.Cluster.NodeNames(), i)) }

// own returns a node that is the scenario's.
func (t *Test) own(name string) *cluster.Node {
	if !slices.Contains(t.nodes, name) {
		t.Fatalf("%s may be another scenario's: see on(...) in table_test.go", name)
	}
	return t.Cluster.Node(name)
}

// ownNodes returns the nodes that are the scenario's.
func (t *Test) ownNodes() (nodes []*cluster.Node) {
	for _, name := range t.nodes {
		nodes = append(nodes, t.Cluster.Node(name))
	}
	return nodes
}

// NodeOf returns the node that a pod was sent to.
func (t *Test) NodeOf(pod corev1.Pod) *cluster.Node {
	if pod.Spec.NodeName == "" {
		t.Fatalf("%s has no node", pod.Name)
	}
	return t.own(pod.Spec.NodeName)
}

// Networks configures other networks on a node until the scenario ends.
func (t *Test) Networks(n *cluster.Node, networks ...cluster.Network) {
	t.Must(n.SetNetworks(t.Ctx, networks...))
	t.Cleanup(func() {
		t.Clear()
		t.Must(n.SetNetworks(t.Ctx, n.DefaultNetwork()))
		for _, network := range networks {
			if network.Name != n.DefaultNetwork().Name {
				t.Must(n.RemoveBridge(t.Ctx, network))
			}
		}
	})
}

// otherNamespace creates another namespace, which is removed with the scenario. The function that
// it returns calls a function with it as the namespace of the scenario.
func (t *Test) otherNamespace(name string) (in func(func())) {
	t.namespace(name)
	in = func(f func()) {
		defer func(own string) { t.NS = own }(t.NS)
		t.NS = name
		f()
	}
	t.Cleanup(func() { in(t.Clear) })
	return in
}

// Clear removes the scenario's workloads and waits until their sandboxes are stopped.
func (t *Test) Clear() {
	t.Kubectl("delete", "statefulset,deployment,replicaset,job", "--all", "--wait=false")
	second := int64(1)
	t.Eventually("the pods go", func() error {
		err := t.Client.CoreV1().Pods(t.NS).DeleteCollection(t.Ctx,
			metav1.DeleteOptions{GracePeriodSeconds: &second}, metav1.ListOptions{})
		if err != nil {
			return err
		}
		pods, err := t.Client.CoreV1().Pods(t.NS).List(t.Ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(pods.Items))
		}
		return err
	})
	t.Eventually("the sandboxes stop", func() error {
		for _, n := range t.ownNodes() {
			sandboxes, err := inspect.Sandboxes(t.Ctx, n.Root(), t.NS)
			if err != nil {
				return err
			}
			for _, s := range sandboxes {
				if s.Ready {
					return fmt.Errorf("%s still runs %s", n.Name, s.Pod)
				}
			}
		}
		return nil
	})
	for _, n := range t.ownNodes() {
		t.noLease(n, "bound to a pod that is gone", func(l cli.Row) bool { return l.State == "Bound" })
	}
}

// CheckStores checks the store of every node.
func (t *Test) CheckStores() {
	for _, n := range t.ownNodes() {
		t.exec(n, t.Cluster.Leasectl(), "check")
	}
}

// Sandbox returns the running sandbox of a pod, which is on node n.
func (t *Test) Sandbox(n *cluster.Node, pod corev1.Pod) inspect.Sandbox {
	var running inspect.Sandbox
	t.Eventually("a sandbox of "+pod.Name, func() error {
		s, found := t.now(n, pod)
		if running = s; !found {
			return fmt.Errorf("%s runs none", n.Name)
		}
		return nil
	})
	return running
}

// now returns the running sandbox of a pod, if there is one.
func (t *Test) now(n *cluster.Node, pod corev1.Pod) (inspect.Sandbox, bool) {
	all := t.sandboxes(n)
	i := slices.IndexFunc(all, func(s inspect.Sandbox) bool { return s.UID == string(pod.UID) && s.Ready })
	if i < 0 {
		return inspect.Sandbox{}, false
	}
	return all[i], true
}

// exec runs a command on a node, and returns what it prints. If it fails, the scenario ends.
func (t *Test) exec(n *cluster.Node, argv ...string) string {
	t.Helper()
	out, err := n.Machine().Run(t.Ctx, argv...)
	t.Must(err)
	return string(out)
}

// object returns the object of a node.
func (t *Test) object(node string) *corev1.Node {
	t.Helper()
	o, err := t.Client.CoreV1().Nodes().Get(t.Ctx, node, metav1.GetOptions{})
	t.Must(err)
	return o
}

func (t *Test) sandboxes(n *cluster.Node) []inspect.Sandbox {
	sandboxes, err := inspect.Sandboxes(t.Ctx, n.Root(), t.NS)
	t.Must(err)
	return sandboxes
}

// Leases reads the leases of the scenario's pods from a node's store.
func (t *Test) Leases(n *cluster.Node) []cli.Row {
	all, err := inspect.Leases(t.Ctx, n.Machine(), t.Cluster.Leasectl(), false)
	t.Must(err)
	return slices.DeleteFunc(all, func(l cli.Row) bool { return l.Namespace != t.NS })
}

// History reads the entries of the scenario's pods from a node's journal, the oldest first.
func (t *Test) History(n *cluster.Node) []store.Entry {
	all, err := inspect.History(t.Ctx, n.Machine(), t.Cluster.Leasectl())
	t.Must(err)
	return slices.DeleteFunc(all, func(e store.Entry) bool { return e.Namespace != t.NS })
}

// LeasesAre checks that the store of a node has exactly one lease per pod interface and family, all
// in one state. Cool-downs do not count. With names of pods, the leases of other pods do not count
// either.
func (t *Test) LeasesAre(n *cluster.Node, state string, count int, pods ...string) {
	leases := t.Leases(n)
	leases = slices.DeleteFunc(leases, func(l cli.Row) bool {
		return l.State == "Held" && !l.IsHold || len(pods) > 0 && !slices.Contains(pods, l.Pod)
	})
	owners := map[string]string{}
	for _, l := range leases {
		if l.State != state {
			t.Fatalf("the store of %s has %s of %s as %s, want %s", n.Name, l.Address, l.Pod, l.State, state)
		}
		key := l.Network + " " + l.Pod + " " + l.Interface
		if strings.Contains(l.Address, ":") {
			key += " IPv6"
		}
		if other, ok := owners[key]; ok {
			t.Fatalf("the store of %s has %s and %s for %s", n.Name, other, l.Address, key)
		}
		owners[key] = l.Address
	}
	if len(leases) != count {
		t.Fatalf("the store of %s has %d leases for %d pods", n.Name, len(leases), count)
	}
}

// Kept ends the scenario if a pod has other addresses than before.
func (t *Test) Kept(before, after Pods) {
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
		t.Fatalf("%s", strings.Join(lost, "; "))
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
func (t *Test) Events(uid, reason string) []string {
	return messages(t.events(t.NS, "involvedObject.uid="+uid+",reason="+reason))
}

// events returns the Events of a namespace, or of all for "", that a field selector selects.
func (t *Test) events(namespace, selector string) []corev1.Event {
	t.Helper()
	list, err := t.Client.CoreV1().Events(namespace).List(t.Ctx, metav1.ListOptions{FieldSelector: selector})
	t.Must(err)
	return list.Items
}

func messages(events []corev1.Event) (texts []string) {
	for _, e := range events {
		texts = append(texts, e.Message)
	}
	return texts
}

// EventOf waits until a pod has an event with a reason whose message has all these words, and
// returns the message.
func (t *Test) EventOf(pod corev1.Pod, reason string, words ...string) string {
	var found string
	t.Eventually(fmt.Sprintf("event %s of %s with %q", reason, pod.Name, words), func() error {
		texts := t.Events(string(pod.UID), reason)
		i := slices.IndexFunc(texts, func(text string) bool { return containsAll(text, words) })
		if i < 0 {
			return fmt.Errorf("there are %q", texts)
		}
		found = texts[i]
		return nil
	})
	return found
}

// WaitNode waits until a node is Ready and its kubelet has reported after since.
func (t *Test) WaitNode(n *cluster.Node, since time.Time) {
	t.Eventually(n.Name+" is Ready", func() error {
		lease, err := t.Client.CoordinationV1().Leases("kube-node-lease").Get(t.Ctx, n.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime == nil || lease.Spec.RenewTime.Before(&metav1.MicroTime{Time: since}) {
			return fmt.Errorf("its kubelet has not reported")
		}
		node, err := t.Client.CoreV1().Nodes().Get(t.Ctx, n.Name, metav1.GetOptions{})
		if err == nil && !cluster.NodeReady(node) {
			err = fmt.Errorf("it is not")
		}
		return err
	})
}
