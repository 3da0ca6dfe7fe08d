package scenarios

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/leasehold-cni/leasehold/test/e2e/bed"
	"github.com/leasehold-cni/leasehold/test/e2e/look"
)

// soon is how long the objects may lag behind a node's store.
const soon = 2 * time.Second

// Truth waits until the scenario's reservations of a node say what its store says, and tells how long that took.
func (w *World) Truth(n *bed.Node, limit time.Duration, when string) {
	began := time.Now()
	w.Eventually(limit, "the reservations of "+n.Name+" tell the truth "+when, func() error { return w.isTrue(n) })
	w.Step("%s: the reservations of %s tell the truth after %.1f s", when, n.Name, time.Since(began).Seconds())
}

// isTrue compares a node's store with what is published of it.
func (w *World) isTrue(n *bed.Node) error {
	leases, _ := w.Leases(n)
	want, got := map[string]string{}, map[string]string{}
	for _, l := range leases {
		if isKept(l) {
			want[l.Pod] += fmt.Sprintf(" %s %s of %s", l.Address, l.State, l.UID)
		}
	}
	for _, r := range w.Reservations() {
		if r.Spec.NodeName != n.Name {
			continue
		}
		for _, a := range r.Status.Addresses {
			got[r.Spec.PodName] += fmt.Sprintf(" %s %s of %s", a.Address, r.Status.State, r.Status.PodUID)
		}
	}
	if !maps.Equal(want, got) {
		return fmt.Errorf("the store has %v, published is %v", want, got)
	}
	return nil
}

func isKept(l look.Lease) bool {
	return l.State == "Held" && l.Firm || l.State == "Bound" && l.Window != ""
}

// reservation is the one of a pod on a node; that there is none ends the scenario.
func (w *World) reservation(pod string, n *bed.Node) look.Reservation {
	r, ok := w.Reservation(pod, n)
	if !ok {
		w.Fatalf("there is no reservation of %s on %s", pod, n.Name)
	}
	return r
}

func (w *World) release(r look.Reservation, id string) {
	patch := fmt.Sprintf(`{"spec":{"release":%q}}`, id)
	_, err := w.Dynamic.Resource(look.IPReservations).Namespace(w.NS).Patch(w.Ctx, r.Metadata.Name, types.MergePatchType,
		[]byte(patch), metav1.PatchOptions{})
	w.Must(err)
}

func reservations(w *World) {
	n := w.Node(1)
	w.Step("two echoservers start on %s; recreated", n.Name)
	set := w.Echoserver("echoserver", n, 2)
	before := set.Ready()
	if w.Bed.Keeps() {
		w.Truth(n, soon, "created")
	}
	after := set.Recreate()
	w.Kept(before, after)
	w.Truth(n, soon, "recreated")
	r := w.reservation("echoserver-0", n)
	w.Step("%s", w.SaidOf(after["echoserver-0"], "AddressKept", "was away for"))
	set.Scale(0)
	w.Truth(n, soon, "deleted")
	if held := w.reservation("echoserver-0", n); held.Status.ID != r.Status.ID || held.Status.HeldUntil == nil {
		w.Fatalf("of lease %s it says %+v", r.Status.ID, held.Status)
	}

	w.Step("all objects are deleted: no lease changes, and they are published again")
	w.Kubectl("delete", "ipreservations", "--all")
	w.Truth(n, soon, "published again")
	w.LeasesAre(n, "Held", 2*families(w))

	w.Step("spec.release of another lease, then of this one")
	w.release(r, "0123456789abcdef")
	w.Eventually(soon, "a condition says why nothing happens", func() error {
		if text := w.Kubectl("get", "ipr", r.Metadata.Name, "-o", "jsonpath={.status.conditions}"); !strings.Contains(text, "OtherLease") {
			return fmt.Errorf("it says %q", text)
		}
		return nil
	})
	w.LeasesAre(n, "Held", 2*families(w))
	w.release(r, r.Status.ID)
	w.Eventually(soon, "the address is free", func() error {
		leases, _ := w.Leases(n)
		for _, l := range leases {
			if l.Pod == "echoserver-0" {
				return fmt.Errorf("%s is %s", l.Address, l.State)
			}
		}
		return nil
	})
	w.Truth(n, soon, "released")
	w.Kept(Pods{"echoserver-1": before["echoserver-1"]}, scaledTo(set, 2))

	w.Step("an address of a living pod is released: the pod keeps it, its name does not")
	living := set.Pods()["echoserver-1"]
	r = w.reservation("echoserver-1", n)
	w.release(r, r.Status.ID)
	w.Eventually(soon, "the reservation goes", func() error {
		if _, ok := w.Reservation("echoserver-1", n); ok {
			return errors.New("it is there")
		}
		return nil
	})
	w.Kept(Pods{"echoserver-1": living}, set.Pods())
	if again := set.Recreate()["echoserver-1"]; addresses(again) == addresses(living) {
		w.Fatalf("recreated, it has %s again", addresses(again))
	}
	w.Truth(n, soon, "recreated after its release")

	w.Step("the window is shortened to 3s on the running pods, and they go: the reservations end with it")
	w.Kubectl("annotate", "--overwrite", "pods", "-l", "app=echoserver", Window+"=3s")
	w.windowBecomes(n, "3s")
	set.Scale(0)
	w.Eventually(3*time.Second+soon, "the reservations end", func() error {
		if left := w.Reservations(); len(left) > 0 {
			return fmt.Errorf("%d are there", len(left))
		}
		return nil
	})
}

func scaledTo(s *Set, size int) Pods {
	s.Scale(size)
	return s.Ready()
}

// windowBecomes waits until every kept lease of the scenario has a window.
func (w *World) windowBecomes(n *bed.Node, window string) {
	w.Eventually(soon, "the window becomes "+window, func() error {
		leases, _ := w.Leases(n)
		for _, l := range leases {
			if l.State == "Bound" && l.Window != window {
				return fmt.Errorf("that of %s is %s", l.Pod, l.Window)
			}
		}
		return nil
	})
}

func reservationsReboot(w *World) {
	n := w.Node(2)
	w.Step("two echoservers start on %s", n.Name)
	set := w.Echoserver("echoserver", n, 2)
	before := set.Ready()
	w.Step("the plug is pulled, a pod force-deleted, the plug put back")
	w.Must(n.PowerOff(w.Ctx))
	w.Cleanup(func() { w.on(n) })
	set.ForceDelete(Pods{"echoserver-0": before["echoserver-0"]})
	booted := time.Now()
	w.Must(n.PowerOn(w.Ctx))
	if w.Bed.Keeps() {
		w.agentSince(n, booted)
		w.Truth(n, soon, "the agent is ready")
	}
	w.WaitNode(n, booted)
	w.Kept(before, set.ReadyBut(Pods{"echoserver-0": before["echoserver-0"]}))
	w.Truth(n, soon, "all run")
}

func expectedBack(w *World) {
	const window = 12 * time.Second
	n := w.Node(1)
	w.Step("an echoserver with a window of %s starts on %s; scaled to 0", window, n.Name)
	set := w.Echoserver("echoserver", n, 1, KeptFor(window.String()))
	before := set.Ready()
	set.Scale(0)
	gone := time.Now()
	w.Step("containerd stops; scaled to 1: the pod waits for its sandbox while the window ends")
	w.Must(n.Kill(w.Ctx, bed.Containerd))
	w.Cleanup(func() { w.runs(n, bed.Containerd) })
	set.Scale(1)
	w.Eventually(window/2, "the new pod is assigned", func() error {
		if p := set.Pods()["echoserver-0"]; p.Spec.NodeName != n.Name {
			return fmt.Errorf("it is on %q", p.Spec.NodeName)
		}
		return nil
	})
	w.Sleep(window + soon - time.Since(gone))
	w.Must(n.StartContainerd(w.Ctx))
	w.Kept(before, set.Ready())
	w.Step("it has its address")
}

func forever(w *World) {
	n := w.Node(2)
	w.Step("an echoserver is kept forever")
	set := w.Echoserver("echoserver", n, 1, KeptFor("forever"))
	before := set.Ready()
	w.Kept(before, set.Recreate())
	set.Scale(0)
	w.Truth(n, soon, "deleted")
	r := w.reservation("echoserver-0", n)
	if r.Status.Window != "forever" || r.Status.HeldUntil != nil {
		w.Fatalf("it says %+v", r.Status)
	}
	w.Kept(before, scaledTo(set, 1))
	set.Scale(0)
	if w.Long {
		w.Step("its StatefulSet has no pod of the number: after ten minutes it goes")
		w.Eventually(15*time.Minute, "the reservation goes", func() error {
			if _, ok := w.Reservation("echoserver-0", n); ok {
				return errors.New("it is there")
			}
			return nil
		})
		return
	}
	w.Truth(n, soon, "deleted again")
	w.release(r, r.Status.ID)
	w.Eventually(soon, "the reservation goes when it is told to", func() error {
		if _, ok := w.Reservation("echoserver-0", n); ok {
			return errors.New("it is there")
		}
		return nil
	})
}

func stockFlannel(w *World) {
	n := w.Node(1)
	network := n.DefaultNetwork()
	network.Type, network.Stock = "flannel", true
	w.Step("%s has flannel's stock list; leasehold is installed as host-local", n.Name)
	w.Networks(n, network)
	w.asHostLocal(n)
	set := w.Echoserver("echoserver", n, 2, KeptFor("10"))
	before := set.Ready()
	w.Kept(before, set.Recreate())
	w.Truth(n, soon, "recreated")
	w.windowBecomes(n, "10m0s")
	w.Step("kept; the annotation is changed on the running pods")
	w.Kubectl("annotate", "--overwrite", "pods", "--all", Window+"=1h")
	w.windowBecomes(n, "1h0m0s")
	w.Step("the annotation is removed")
	w.Kubectl("annotate", "pods", "--all", Window+"-")
	w.windowBecomes(n, "")
	w.Truth(n, soon, "nothing is kept any more")
}

// asHostLocal puts leasehold in host-local's place until the scenario ends, as a user would whose manifests cannot change.
func (w *World) asHostLocal(n *bed.Node) {
	if !w.Bed.Keeps() {
		return
	}
	dir := "/opt/cni/bin"
	upstream, err := os.ReadFile(n.Disk(dir + "/host-local"))
	w.Must(err)
	ours, err := os.ReadFile(n.Disk(dir + "/leasehold"))
	w.Must(err)
	put := func(program []byte) {
		tmp := n.Root() + dir + "/.new"
		w.Must(os.WriteFile(tmp, program, 0o755))
		w.Must(os.Rename(tmp, n.Root()+dir+"/host-local"))
	}
	put(ours)
	w.Cleanup(func() {
		w.Clear()
		put(upstream)
	})
}

func apiAwayReservations(w *World) {
	away := 45 * time.Second
	if w.Long {
		away = 5 * time.Minute
	}
	n := w.Node(1)
	w.Step("two echoservers start on %s", n.Name)
	set := w.Echoserver("echoserver", n, 2)
	before := set.Ready()
	if w.Bed.Keeps() {
		w.wrongWord(n, set)
	}
	w.Step("the API server stops for %s; meanwhile the sandboxes are killed", away)
	gone := time.Now()
	var old []look.Sandbox
	for _, p := range before {
		old = append(old, w.Sandbox(n, p))
	}
	back := w.WithoutControl(bed.APIServer)
	for _, s := range old {
		_, err := n.Machine().Run(w.Ctx, "kill", "-9", fmt.Sprint(s.PID))
		w.Must(err)
	}
	w.Eventually(90*time.Second, "new sandboxes", func() error {
		running := 0
		for _, s := range w.sandboxes(n) {
			if s.Ready && !slices.ContainsFunc(old, func(o look.Sandbox) bool { return o.ID == s.ID }) {
				running++
			}
		}
		if running < len(old) {
			return fmt.Errorf("%d of %d", running, len(old))
		}
		return nil
	})
	w.Step("they run in new sandboxes")
	w.Sleep(away - time.Since(gone))
	back()
	if w.Bed.Keeps() {
		w.Truth(n, 5*time.Second, "the API server is back")
	}
	w.Kept(before, set.Ready())

	w.Step("the CRD is deleted, with every object, and applied again")
	w.Kubectl("delete", "crd", "ipreservations.ipam.leasehold.dev")
	crd := filepath.Join(w.Bed.Repo, "daemonset/crds/ipam.leasehold.dev_ipreservations.yaml")
	applied := untilDone(func() {
		w.Kubectl("apply", "-f", crd)
		w.Kubectl("wait", "--for=condition=Established", "crd/ipreservations.ipam.leasehold.dev", "--timeout=30s")
	})
	w.Cleanup(applied)
	w.Step("it is deleted; the pods go, too")
	set.Scale(0)
	w.LeasesAre(n, "Held", 2*families(w))
	w.Step("they went; it is applied")
	applied()
	w.Truth(n, 10*time.Second, "the CRD is back")
	w.Kept(before, scaledTo(set, 2))
}

// wrongWord writes what no pod should say, past the policy that would refuse it.
func (w *World) wrongWord(n *bed.Node, set *Set) {
	policies := filepath.Join(w.Bed.Repo, "daemonset/policies/annotations.yaml")
	w.Kubectl("delete", "-f", policies)
	back := untilDone(func() { w.Kubectl("apply", "-f", policies) })
	w.Cleanup(back)
	w.Eventually(30*time.Second, "the API server takes a wrong word", func() error {
		out, err := w.kubectl("", "annotate", "--overwrite", "pods", "--all", Window+"=soon")
		if err != nil {
			return errors.New(out)
		}
		return nil
	})
	w.Step("a wrong word changes nothing: %s", w.SaidOf(set.Pods()["echoserver-0"], "InvalidReservation", `"soon"`, "want whole minutes"))
	w.windowBecomes(n, "10m0s")
	w.Kubectl("annotate", "--overwrite", "pods", "--all", Window+"=10")
	back()
}

func moved(w *World) {
	grace := 5 * time.Minute
	if !w.Long {
		grace = 20 * time.Second
		w.agentArgs("--move-grace=" + grace.String())
	}
	w.Step("an echoserver starts; its node loses power, and it is sent to another")
	set := w.Echoserver("echoserver", nil, 1)
	before := set.Ready()
	old := w.NodeOf(before["echoserver-0"])
	w.Must(old.PowerOff(w.Ctx))
	w.Cleanup(func() { w.on(old) })
	w.Eventually(time.Minute, "the cluster misses the node", func() error {
		node, err := w.Client.CoreV1().Nodes().Get(w.Ctx, old.Name, metav1.GetOptions{})
		w.Must(err)
		if bed.NodeReady(node) {
			return errors.New("it is still Ready")
		}
		return nil
	})
	set.ForceDelete(before)
	now := w.NodeOf(set.ReadyBut(before)["echoserver-0"])
	if now.Name == old.Name {
		w.Fatalf("it runs on %s again", old.Name)
	}
	w.Step("it runs on %s; %s returns", now.Name, old.Name)
	booted := time.Now()
	w.Must(old.PowerOn(w.Ctx))
	w.WaitNode(old, booted)
	w.Echoserver("another", old, 1, KeptFor("")) // an agent of the bed is sure of its view by a call of the plugin
	w.agentSince(old, booted)
	w.Truth(old, 10*time.Second, "the old node is back")
	w.Truth(now, soon, "the old node is back")
	if r := w.reservation("echoserver-0", old); r.Status.State != "Held" {
		w.Fatalf("%s says %s", old.Name, r.Status.State)
	}
	// The agent has seen the pod elsewhere since its own start at the earliest.
	began := w.Agent(old).Status.ContainerStatuses[0].State.Running.StartedAt.Time
	writes := func() float64 {
		sum := 0.0
		for _, n := range []*bed.Node{old, now} {
			sum += w.AgentMetrics(n).Sum("leasehold_publish_writes_total", "result=ok")
		}
		return sum
	}
	wrote := writes()
	w.Eventually(grace+time.Minute, "the old hold ends", func() error {
		if _, ok := w.Reservation("echoserver-0", old); ok {
			return errors.New("it is there")
		}
		return nil
	})
	lasted := time.Since(began)
	w.Truth(old, soon, fmt.Sprintf("let go %.0f s after the agent's start (moveGrace %s)", lasted.Seconds(), grace))
	if lasted < grace {
		w.Fatalf("the hold lasted for %s of %s", lasted, grace)
	}
	if r := w.reservation("echoserver-0", now); r.Status.State != "Bound" || !r.Status.Confirmed {
		w.Fatalf("%s says %+v", now.Name, r.Status)
	}
	w.Sleep(3 * time.Second)
	// One deletion; and the object of a pod that was made again elsewhere may have been confirmed meanwhile.
	n := writes() - wrote
	w.Step("%.0f writes of both agents since the return", n)
	if n > 2 {
		w.Fatalf("%.0f writes for one deletion and one confirmation", n)
	}
	w.Step("the rest of the old node's window is not kept: its address is free")
	if leases, _ := w.Leases(old); slices.ContainsFunc(leases, func(l look.Lease) bool { return l.Pod == "echoserver-0" }) {
		w.Fatalf("%s keeps %+v", old.Name, leases)
	}
}

// agentArgs adds arguments to every agent's until the scenario ends.
func (w *World) agentArgs(args ...string) {
	agents := w.Client.AppsV1().DaemonSets(bed.System)
	set := func(args []string) {
		patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"agent","args":["%s"]}]}}}}`, strings.Join(args, `","`))
		_, err := agents.Patch(w.Ctx, bed.Agent, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		w.Must(err)
		w.Must(w.Bed.WaitDeployed(w.Ctx, 2*time.Minute))
	}
	now, err := agents.Get(w.Ctx, bed.Agent, metav1.GetOptions{})
	w.Must(err)
	before := now.Spec.Template.Spec.Containers[0].Args
	w.Cleanup(func() { set(before) })
	set(append(slices.Clone(before), args...))
}

func foreignReservation(w *World) {
	w.Step("an echoserver on %s and on %s", w.Node(1).Name, w.Node(2).Name)
	mine, other := w.Node(1), w.Node(2)
	w.Echoserver("mine", mine, 1)
	w.Echoserver("other", other, 1)
	w.Truth(mine, soon, "both run")
	w.Truth(other, soon, "both run")
	ours, theirs := w.reservation("mine-0", mine), w.reservation("other-0", other)

	agent := w.as(w.Agent(mine)).Resource(look.IPReservations).Namespace(w.NS)
	refused := func(what string, err error) {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "may not write a reservation of node "+other.Name) {
			w.Fatalf("%s: %v", what, err)
		}
		w.Step("%s: refused", what)
	}
	label := []byte(`{"metadata":{"labels":{"tried":"yes"}}}`)
	status := []byte(`{"status":{"addressList":"10.0.0.1"}}`)
	_, err := agent.Patch(w.Ctx, ours.Metadata.Name, types.MergePatchType, label, metav1.PatchOptions{})
	w.Must(err)
	_, err = agent.Patch(w.Ctx, theirs.Metadata.Name, types.MergePatchType, label, metav1.PatchOptions{})
	refused("another node's object", err)
	_, err = agent.Patch(w.Ctx, theirs.Metadata.Name, types.MergePatchType, status, metav1.PatchOptions{}, "status")
	refused("another node's status", err)
	refused("deleting it", agent.Delete(w.Ctx, theirs.Metadata.Name, metav1.DeleteOptions{}))
	object, err := agent.Get(w.Ctx, theirs.Metadata.Name, metav1.GetOptions{})
	w.Must(err)
	object.SetName("forged")
	object.SetResourceVersion("")
	_, err = agent.Create(w.Ctx, object, metav1.CreateOptions{})
	refused("a new one in its name", err)

	agent = w.as(corev1.Pod{}).Resource(look.IPReservations).Namespace(w.NS)
	_, err = agent.Patch(w.Ctx, ours.Metadata.Name, types.MergePatchType, label, metav1.PatchOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "not bound to a pod") {
		w.Fatalf("a token that is bound to no pod: %v", err)
	}
	w.Step("a token that is bound to no pod: refused")
	w.rights()
}

// as is a client with the rights of an agent, by a token that is bound to its pod; to none for a pod without a name.
func (w *World) as(agent corev1.Pod) dynamic.Interface {
	request := &authv1.TokenRequest{}
	if agent.Name != "" {
		request.Spec.BoundObjectRef = &authv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: agent.Name, UID: agent.UID}
	}
	token, err := w.Client.CoreV1().ServiceAccounts(bed.System).CreateToken(w.Ctx, bed.Agent, request, metav1.CreateOptions{})
	w.Must(err)
	config, err := clientcmd.BuildConfigFromFlags("", w.Bed.Kubeconfig())
	w.Must(err)
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = token.Status.Token
	client, err := dynamic.NewForConfig(config)
	w.Must(err)
	return client
}

// stormPods is how many pods the storm has: more than a kubelet runs, and more than an address has in the bed's subnets.
const stormPods = 250

// storm has the plugin called for 250 pods of the API at once. The kubelet is away and would refuse so many; the plugin,
// its store, the agent and the API server are the real ones.
func storm(w *World) {
	n := w.Node(1)
	agent := w.Agent(n)
	w.Must(n.Stop(w.Ctx, bed.Kubelet))
	w.Cleanup(func() { w.runs(n, bed.Kubelet) })
	w.Step("%d pods are assigned to %s", stormPods, n.Name)
	uids := w.bare(n, stormPods)
	dir := "/var/lib/leasehold-storm"
	w.Must(os.MkdirAll(n.Root()+dir, 0o755))
	w.Cleanup(func() {
		// The agent mirrors the leases there until the last of them is gone, also while the folder is being removed.
		w.Eventually(20*time.Second, "nothing of the storm is left", func() error {
			_, err := n.Machine().Run(w.Ctx, "sh", "-c", `for i in $(ls `+dir+`/ns 2>/dev/null); do ip netns delete "$i" || true; done; rm -rf `+dir)
			return err
		})
	})
	w.Must(os.WriteFile(n.Root()+dir+"/conf", []byte(`{"cniVersion":"1.0.0","name":"storm","type":"bridge",`+
		`"ipam":{"type":"leasehold","dataDir":"`+dir+`","ranges":[[{"subnet":"10.250.0.0/22"}]]}}`), 0o644))
	w.Must(os.WriteFile(n.Root()+dir+"/pods", []byte(strings.Join(uids, "\n")+"\n"), 0o644))
	w.Must(os.WriteFile(n.Root()+dir+"/call", []byte(stormCall), 0o755))

	// Without its kubelet the node is soon not Ready, and no pod of it; the agent runs on.
	metrics := func() look.Metrics { return w.metrics(agent, agentMetrics) }
	at := metrics()
	count := func(state string) func() error {
		return func() error {
			found := 0
			for _, r := range w.Reservations() {
				if r.Status.State == state {
					found++
				}
			}
			if found != stormPods {
				return fmt.Errorf("%d of %d", found, stormPods)
			}
			return nil
		}
	}
	for _, act := range []struct{ verb, state string }{{"ADD", "Bound"}, {"DEL", "Held"}} {
		if act.verb == "DEL" { // nobody waits for a pod that is on its way out
			w.Must(w.Client.CoreV1().Pods(w.NS).DeleteCollection(w.Ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		}
		began := time.Now()
		_, err := n.Machine().Run(w.Ctx, "sh", "-c", fmt.Sprintf(
			`cd %s && mkdir -p ns && xargs -P 8 -L 1 ./call %s %s < pods`, dir, act.verb, w.NS))
		w.Must(err)
		called := time.Since(began)
		w.Eventually(time.Minute, act.verb+": all reservations are "+act.state, count(act.state))
		then := metrics()
		w.Step("%s: %d calls in %.1f s; all reservations %s after %.1f s; %.0f writes; lag: mean %.2f s, %s; agent %.1f MiB",
			act.verb, stormPods, called.Seconds(), act.state, time.Since(began).Seconds(),
			then.Sum("leasehold_publish_writes_total")-at.Sum("leasehold_publish_writes_total"),
			meanLag(at, then), slowest(at, then), then.Sum("process_resident_memory_bytes")/(1<<20))
		at = then
		if act.state == "Bound" {
			at = w.idle(metrics)
		}
	}
	w.Truth(n, soon, "after the storm")
	w.Step("the window of 15 s ends")
	w.Eventually(15*time.Second+10*time.Second, "all reservations are gone", func() error {
		if left := w.Reservations(); len(left) > 0 {
			return fmt.Errorf("%d are left", len(left))
		}
		return nil
	})
	w.Step("%.0f more writes", metrics().Sum("leasehold_publish_writes_total")-at.Sum("leasehold_publish_writes_total"))
	now := int64(0)
	w.Must(w.Client.CoreV1().Pods(w.NS).DeleteCollection(w.Ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}))
}

// idle tells what the node's agent costs while nothing happens, and returns its last metrics.
func (w *World) idle(metrics func() look.Metrics) look.Metrics {
	w.Sleep(50 * time.Second) // after half a minute all that lives is confirmed: a write for each pod
	began, from := time.Now(), metrics()
	w.Sleep(20 * time.Second)
	to := metrics()
	cpu := (to.Sum("process_cpu_seconds_total") - from.Sum("process_cpu_seconds_total")) / time.Since(began).Seconds()
	w.Step("nothing to do with %d leases: agent %.1f MiB, %.2f %% of a core (goal: 40, 0.2)", stormPods, to.Sum("process_resident_memory_bytes")/(1<<20), cpu*100)
	return to
}

// stormCall calls the plugin as a runtime does: an own namespace first, and away with it after the DEL.
const stormCall = `#!/bin/sh
# call ADD|DEL <namespace> <pod> <uid>
set -e
id=storm-$3
[ "$1" = DEL ] || { ip netns add "$id"; : > "ns/$id"; }
CNI_COMMAND=$1 CNI_CONTAINERID=$4 CNI_NETNS=/run/netns/$id CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin \
CNI_ARGS="IgnoreUnknown=1;K8S_POD_NAMESPACE=$2;K8S_POD_NAME=$3;K8S_POD_INFRA_CONTAINER_ID=$4;K8S_POD_UID=$4" \
/opt/cni/bin/leasehold < conf > /dev/null
[ "$1" = ADD ] || { ip netns delete "$id"; rm "ns/$id"; }
`

// bare makes pods that are assigned to a node, and returns "name uid" of each.
func (w *World) bare(n *bed.Node, count int) []string {
	w.Cleanup(w.Clear)
	var lines []string
	for i := range count {
		p, err := w.Client.CoreV1().Pods(w.NS).Create(w.Ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("storm-%d", i), Annotations: map[string]string{Window: "15s"}},
			Spec:       corev1.PodSpec{NodeName: n.Name, Containers: []corev1.Container{{Name: "none", Image: "none", ImagePullPolicy: corev1.PullNever}}},
		}, metav1.CreateOptions{})
		w.Must(err)
		lines = append(lines, p.Name+" "+string(p.UID))
	}
	return lines
}

func meanLag(from, to look.Metrics) float64 {
	sum, count := 0.0, to.Sum("leasehold_publish_lag_seconds")-from.Sum("leasehold_publish_lag_seconds")
	for _, m := range []struct {
		look.Metrics
		sign float64
	}{{to, 1}, {from, -1}} {
		for _, metric := range m.Metrics["leasehold_publish_lag_seconds"].GetMetric() {
			sum += m.sign * metric.GetHistogram().GetSampleSum()
		}
	}
	return sum / max(count, 1)
}

// slowest is the least bound that the histogram knows for the greatest lag in between.
func slowest(from, to look.Metrics) string {
	counts := func(m look.Metrics) map[float64]uint64 {
		c := map[float64]uint64{}
		for _, metric := range m["leasehold_publish_lag_seconds"].GetMetric() {
			for _, b := range metric.GetHistogram().GetBucket() {
				c[b.GetUpperBound()] = b.GetCumulativeCount()
			}
		}
		return c
	}
	before, after := counts(from), counts(to)
	all := uint64(to.Sum("leasehold_publish_lag_seconds") - from.Sum("leasehold_publish_lag_seconds"))
	for _, bound := range slices.Sorted(maps.Keys(after)) {
		if after[bound]-before[bound] == all {
			return fmt.Sprintf("none above %g s", bound)
		}
	}
	return "some above all bounds"
}
