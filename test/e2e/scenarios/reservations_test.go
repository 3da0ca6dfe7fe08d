package scenarios

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/kube/apis/ipam/v1alpha1"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// InSync waits until the scenario's reservations of a node match its store, and logs how long that
// took.
func (t *Test) InSync(n *cluster.Node, when string) {
	began := time.Now()
	t.Eventually("the reservations of "+n.Name+" match its store: "+when, func() error { return t.inSync(n) })
	t.Step("%s: the reservations of %s match its store after %.1f s", when, n.Name, time.Since(began).Seconds())
}

// inSync compares a node's store with its reservations. Of a pod that has returned, they may still
// show the former pod, as Held or Bound, until it is Ready.
func (t *Test) inSync(n *cluster.Node) error {
	pods, err := t.Client.CoreV1().Pods(t.NS).List(t.Ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	starting := map[types.UID]bool{}
	for _, p := range pods.Items {
		starting[p.UID] = !ready(p)
	}
	published := map[string]v1alpha1.IPReservation{}
	for _, r := range t.Reservations() {
		if r.Spec.NodeName == n.Name {
			published[r.Spec.PodName] = r
		}
	}
	want, got := map[string]string{}, map[string]string{}
	for _, l := range t.Leases(n) {
		if isKept(l) {
			state, uid := l.State, l.UID
			if r := published[l.Pod]; starting[types.UID(uid)] && r.Status.PodUID != "" {
				state, uid = string(r.Status.State), r.Status.PodUID
			}
			want[l.Pod] += fmt.Sprintf(" %s %s of %s", l.Address, state, uid)
		}
	}
	for _, r := range published {
		for _, a := range r.Status.Addresses {
			got[r.Spec.PodName] += fmt.Sprintf(" %s %s of %s", a.Address, r.Status.State, r.Status.PodUID)
		}
	}
	if !maps.Equal(want, got) {
		return fmt.Errorf("the store has %v, published is %v", want, got)
	}
	return nil
}

func isKept(l cli.Row) bool {
	return l.State == "Held" && l.IsHold || l.State == "Bound" && l.Window != ""
}

// reservation returns the reservation of a pod on a node. If there is none, the scenario ends.
func (t *Test) reservation(pod string, n *cluster.Node) v1alpha1.IPReservation {
	r, ok := t.Reservation(pod, n)
	if !ok {
		t.Fatalf("there is no reservation of %s on %s", pod, n.Name)
	}
	return r
}

// noReservation waits until there is no reservation of a pod on a node.
func (t *Test) noReservation(pod string, n *cluster.Node) {
	t.Becomes("the reservation of "+pod+" on "+n.Name, v1alpha1.IPReservation{}, func() any {
		r, _ := t.Reservation(pod, n)
		return r
	})
}

func (t *Test) release(r v1alpha1.IPReservation, id string) error {
	patch := fmt.Sprintf(`{"spec":{"release":%q}}`, id)
	_, err := t.Dynamic.Resource(v1alpha1.Resource).Namespace(t.NS).Patch(t.Ctx, r.Name,
		types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func reservations(t *Test) {
	n := t.Node(1)
	t.Step("two echoservers start on %s; recreated", n.Name)
	set := t.Echoserver("echoserver", n, 2)
	before := set.Ready()
	t.InSync(n, "created")
	after := set.Recreate()
	t.Kept(before, after)
	t.InSync(n, "recreated")
	r := t.reservation("echoserver-0", n)
	t.Step("%s", t.EventOf(after["echoserver-0"], "AddressKept", "was away for"))
	set.Scale(0)
	t.InSync(n, "deleted")
	if held := t.reservation("echoserver-0", n); held.Status.ID != r.Status.ID || held.Status.HeldUntil == nil {
		t.Fatalf("the status of lease %s is %+v", r.Status.ID, held.Status)
	}

	t.Step("all objects are deleted: no lease changes, and they are published again")
	t.Kubectl("delete", "ipreservations", "--all")
	t.InSync(n, "published again")
	t.LeasesAre(n, "Held", 2*families(t))

	t.Step("spec.release of another lease, then of this one")
	if err := t.release(r, "0123456789abcdef"); err == nil || !strings.Contains(err.Error(), "is not the id") {
		t.Fatalf("another lease's id: %v", err)
	}
	t.LeasesAre(n, "Held", 2*families(t))
	t.Must(t.release(r, r.Status.ID))
	t.noLeaseOf("echoserver-0", n)
	t.InSync(n, "released")
	t.Kept(Pods{"echoserver-1": before["echoserver-1"]}, scaledTo(set, 2))

	t.Step("the address of a running pod is released: the pod keeps it, its successor does not get it")
	living := set.Pods()["echoserver-1"]
	r = t.reservation("echoserver-1", n)
	t.Must(t.release(r, r.Status.ID))
	t.noReservation("echoserver-1", n)
	t.Kept(Pods{"echoserver-1": living}, set.Pods())
	if again := set.Recreate()["echoserver-1"]; addresses(again) == addresses(living) {
		t.Fatalf("recreated, it has %s again", addresses(again))
	}
	t.InSync(n, "recreated after its release")

	t.Step("the annotation of the running pods is removed")
	t.Kubectl("annotate", "pods", "-l", "app=echoserver", Window+"-")
	t.windowBecomes(n, "")
	t.InSync(n, "the windows are removed")
	t.Step("the window of the running pods is shortened to 3s, and they are deleted: the reservations end with it")
	t.Kubectl("annotate", "--overwrite", "pods", "-l", "app=echoserver", Window+"=3s")
	t.windowBecomes(n, "3s")
	set.Scale(0)
	t.Becomes("reservations", 0, func() any { return len(t.Reservations()) })
}

func scaledTo(s *Set, size int) Pods {
	s.Scale(size)
	return s.Ready()
}

// windowBecomes waits until every kept lease of the scenario has a window.
func (t *Test) windowBecomes(n *cluster.Node, window string) {
	t.noLease(n, "with another window than "+window, func(l cli.Row) bool {
		return l.State == "Bound" && l.Window != window
	})
}

// put replaces a program of a node by another one.
func (t *Test) put(n *cluster.Node, program, path string) {
	t.exec(n, "sh", "-ec", `cp "$0" "$1.new" && mv "$1.new" "$1"`, program, path)
}

func apiDownReservations(t *Test) {
	const away = 20 * time.Second // two rounds of the agent
	n := t.Node(1)
	t.Step("two echoservers start on %s", n.Name)
	set := t.Echoserver("echoserver", n, 2)
	before := set.Ready()
	t.Step("the API server stops for %s; meanwhile the sandboxes end", away)
	gone := time.Now()
	var old []inspect.Sandbox
	for _, p := range before {
		old = append(old, t.Sandbox(n, p))
	}
	t.freshWatches()
	back := t.WithoutControl(cluster.APIServer)
	for _, s := range old {
		t.endSandbox(n, s)
	}
	t.Becomes("new sandboxes", len(old), func() any {
		return len(slices.DeleteFunc(t.sandboxes(n), func(s inspect.Sandbox) bool {
			return !s.Ready || slices.ContainsFunc(old, func(o inspect.Sandbox) bool { return o.ID == s.ID })
		}))
	})
	t.Step("they run in new sandboxes")
	t.Sleep(away - time.Since(gone))
	back()
	t.InSync(n, "the API server is back")
	t.Kept(before, set.Restarted(before))

	t.Step("the CRD is deleted, with every object, and applied again")
	t.Kubectl("delete", "crd", "ipreservations.ipam.leasehold.dev")
	applied := t.undo(func() { t.Must(t.Cluster.Apply(t.Ctx)) })
	t.Step("it is deleted; so are the pods")
	set.Scale(0)
	t.LeasesAre(n, "Held", 2*families(t))
	t.Step("the pods are gone; it is applied")
	applied()
	t.InSync(n, "the CRD is back") // an agent tries once a minute whether there is a CRD
	t.Kept(before, scaledTo(set, 2))
}

func moved(t *Test) {
	const grace = 20 * time.Second
	t.Cleanup(func() {
		t.Must(t.Cluster.Apply(t.Ctx))
		t.Must(t.Cluster.WaitDeployed(t.Ctx))
	})
	t.Kubectl("patch", "--namespace="+cluster.System, "daemonset", cluster.Agent, "--type=json",
		`-p=[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--move-grace=`+grace.String()+`"}]`)
	t.Must(t.Cluster.WaitDeployed(t.Ctx))
	t.Step("an echoserver starts; its node loses power, and it is recreated on another")
	set := t.Echoserver("echoserver", nil, 1)
	before := set.Ready()
	old := t.NodeOf(before["echoserver-0"])
	t.powerOff(old)
	t.waitNotReady(old)
	t.forceDelete(before)
	now := t.NodeOf(t.moved(before, set.ReadyBut(before), "echoserver-0"))
	t.Step("it runs on %s; %s boots", now.Name, old.Name)
	booted := time.Now()
	t.Must(old.PowerOn(t.Ctx))
	t.WaitNode(old, booted)
	t.Echoserver("another", old, 1, KeptFor("")) // in this cluster a call of the plugin proves the agent's view
	t.agentSince(old, booted)
	t.InSync(old, "the old node has booted")
	t.InSync(now, "the old node has booted")
	if r := t.reservation("echoserver-0", old); r.Status.State != "Held" {
		t.Fatalf("the reservation of %s is %s", old.Name, r.Status.State)
	}
	// The agent has seen the pod elsewhere since its own start at the earliest.
	began := t.Agent(old).Status.ContainerStatuses[0].State.Running.StartedAt.Time
	t.noReservation("echoserver-0", old)
	lasted := time.Since(began)
	t.InSync(old, fmt.Sprintf("ended %.0f s after the agent's start (moveGrace %s)", lasted.Seconds(), grace))
	if lasted < grace {
		t.Fatalf("the hold lasted for %s of %s", lasted, grace)
	}
	if r := t.reservation("echoserver-0", now); r.Status.State != "Bound" || !r.Status.Confirmed {
		t.Fatalf("the reservation of %s is %+v", now.Name, r.Status)
	}
	t.Step("the address on the old node is free before its window ends")
	if leases := t.Leases(old); slices.ContainsFunc(leases,
		func(l cli.Row) bool { return l.Pod == "echoserver-0" }) {
		t.Fatalf("%s holds %+v", old.Name, leases)
	}
}
