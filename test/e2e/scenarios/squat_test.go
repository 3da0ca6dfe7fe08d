package scenarios

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
)

// squat has a namespace hold more than half of a node's 29 addresses, by a StatefulSet that is
// scaled to zero and by bare pods that are deleted. It loses none as long as there are free
// addresses. After that, pods of another namespace start, and the holds nearest to their ends yield
// to them. Jobs hold nothing.
func squat(t *Test) {
	const size, half = 29, 14
	n := t.Node(2)
	t.ownNetwork(n, "bridge", "10.245.7.0/27")
	tenant := t.NS
	other := t.otherNamespace(tenant + "-other")

	set := t.Echoserver("set", n, 10, KeptFor("1h"))
	set.Scale(0)
	bare := t.barePods("bare", n, 10)
	t.forceDelete(bare)
	for i := range 4 {
		t.job(fmt.Sprint("job-", i), n)
	}
	t.Eventually(time.Minute, "the jobs' pods run", func() error { return t.allReady(4) })
	t.Clear()
	t.firmlyHeld(n, 20)
	t.Step("%s holds 20 of %d addresses: 10 of a StatefulSet, 10 of bare pods, none of 4 jobs", tenant, size)

	yielded := t.AgentMetrics(n).Sum("leasehold_leases_yielded_total")
	other(func() { t.Deployment("others", n, size-20).Ready() })
	t.firmlyHeld(n, 20)
	t.Step("%d pods of another namespace have the free addresses, and no hold has ended", size-20)

	other(func() { t.Deployment("more", n, 20-half).Ready() })
	t.firmlyHeld(n, half)
	t.Step("6 more start, and %s has %d holds left", tenant, half)
	t.Eventually(time.Minute, "events and metric say so", func() error {
		events, err := t.Client.CoreV1().Events(tenant).List(t.Ctx, metav1.ListOptions{
			FieldSelector: "reason=HoldYielded"})
		if err != nil {
			return err
		}
		metric := t.AgentMetrics(n).Sum("leasehold_leases_yielded_total") - yielded
		if len(events.Items) != 20-half || metric != 20-half {
			return fmt.Errorf("%d events, and the metric counts %v; want %d", len(events.Items), metric, 20-half)
		}
		return nil
	})

	t.Step("the bare pods were released last: each returns to its address")
	t.Kept(bare, t.barePods("bare", n, 10))
	t.Clear()
	other(t.Clear)
}

// otherNamespace creates another namespace, which is removed with the scenario. The function that
// it returns calls a function with it as the namespace of the scenario.
func (t *Test) otherNamespace(name string) (in func(func())) {
	_, err := t.Client.CoreV1().Namespaces().Create(t.Ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name,
		Labels: map[string]string{label: t.scenario.name}}}, metav1.CreateOptions{})
	t.Must(err)
	in = func(f func()) {
		defer func(own string) { t.NS = own }(t.NS)
		t.NS = name
		f()
	}
	t.Cleanup(func() {
		in(t.Clear)
		t.Must(t.Client.CoreV1().Namespaces().Delete(t.Ctx, name, metav1.DeleteOptions{}))
	})
	t.Eventually(90*time.Second, "a service account in "+name, func() error {
		_, err := t.Client.CoreV1().ServiceAccounts(name).Get(t.Ctx, "default", metav1.GetOptions{})
		return err
	})
	return in
}

// barePods creates pods without an owner and with a window of an hour, and waits until they run.
func (t *Test) barePods(name string, n *cluster.Node, count int) Pods {
	t.Cleanup(t.Clear)
	template := t.echoserver(name, n, 1, KeptFor("1h")).Spec.Template
	for i := range count {
		pod := corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
		pod.Name = fmt.Sprintf("%s-%d", name, i)
		_, err := t.Client.CoreV1().Pods(t.NS).Create(t.Ctx, &pod, metav1.CreateOptions{})
		t.Must(err)
	}
	return t.set(name, count).Ready()
}

// allReady returns nil if the namespace has as many pods, and all are Ready.
func (t *Test) allReady(count int) error {
	list, err := t.Client.CoreV1().Pods(t.NS).List(t.Ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	n := 0
	for _, p := range list.Items {
		if ready(p) && p.DeletionTimestamp == nil {
			n++
		}
	}
	if n != count {
		return fmt.Errorf("%d of %d are Ready", n, count)
	}
	return nil
}

// firmlyHeld waits until the store of a node has as many firm holds of the scenario's namespace.
func (t *Test) firmlyHeld(n *cluster.Node, count int) {
	t.Eventually(time.Minute, fmt.Sprintf("%s holds %d addresses", t.NS, count), func() error {
		leases, _ := t.Leases(n)
		firm := 0
		for _, l := range leases {
			if l.State == "Held" && l.Firm {
				firm++
			}
		}
		if firm != count {
			return fmt.Errorf("it holds %d", firm)
		}
		return nil
	})
}
