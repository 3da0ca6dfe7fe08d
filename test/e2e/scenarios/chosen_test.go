package scenarios

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// freeAddresses returns an address of each family that no lease of the node has, from the end of
// its ranges. skip is how many are passed over.
func (t *Test) freeAddresses(n *cluster.Node, skip int) (free []string) {
	leases, err := inspect.Leases(t.Ctx, n.Machine(), t.Cluster.Leasectl(), true)
	t.Must(err)
	var used []string
	for _, l := range leases {
		used = append(used, fmt.Sprint(l.Address))
	}
	for _, subnet := range n.DefaultNetwork().Subnets {
		addr := subnet.Masked().Addr()
		for range 240 {
			addr = addr.Next()
		}
		for left := skip; left > 0 || slices.Contains(used, addr.String()); addr = addr.Prev() {
			if !slices.Contains(used, addr.String()) {
				left--
			}
		}
		free = append(free, addr.String())
	}
	return free
}

// reserve runs `kubectl leasehold reserve`, which must end with a status and print all words, and
// returns what it prints.
func (t *Test) reserve(dir string, status int, pod string, addresses []string, words ...string) string {
	command := "kubectl leasehold reserve --pod=" + pod
	for _, a := range addresses {
		command += " --address=" + a
	}
	return t.reserveWith(dir, status, command, words...)
}

func (t *Test) reserveWith(dir string, status int, command string, words ...string) string {
	out, err := t.shell(dir, fmt.Sprintf("PATH=$PWD:$PATH; code=0; %s || code=$?; test $code = %d", command, status))
	if err != nil {
		t.Fatalf("%s: %v, want the exit status %d\n%s", command, err, status, out)
	}
	for _, word := range words {
		if !strings.Contains(out, word) {
			t.Fatalf("%s: it does not print %q:\n%s", command, word, out)
		}
	}
	t.Step("$ %s\n    %s", command, strings.ReplaceAll(strings.TrimSpace(out), "\n", "\n    "))
	return out
}

// requestIs waits until all addresses of an AddressRequest have a state.
func (t *Test) requestIs(name, state string, count int) {
	t.Eventually("the addresses of request "+name+" are "+state, func() error {
		out := t.Kubectl("get", "areq", name, "-o", "jsonpath={.status.addresses[*].state}")
		if want := strings.TrimSpace(strings.Repeat(state+" ", count)); out != want {
			return fmt.Errorf("they are %q", out)
		}
		return nil
	})
}

// heldFor waits until a node shows addresses as held for a pod or, without addresses, until it
// shows none of the pod.
func (t *Test) heldFor(pod string, n *cluster.Node, addresses []string) {
	t.Eventually(fmt.Sprintf("%s has %v on %s", pod, addresses, n.Name), func() error {
		r, found := t.Reservation(pod, n)
		var got []string
		for _, a := range r.Status.Addresses {
			got = append(got, a.Address)
		}
		slices.Sort(got)
		if !slices.Equal(got, slices.Sorted(slices.Values(addresses))) || found && r.Status.State != "Held" {
			return fmt.Errorf("it is %q with %v", r.Status.State, got)
		}
		return nil
	})
}

// isFor ends the scenario unless a pod is on a node and has these addresses.
func (t *Test) isFor(pods Pods, name string, n *cluster.Node, addresses []string) {
	var got []string
	for _, ip := range pods[name].Status.PodIPs {
		got = append(got, ip.IP)
	}
	slices.Sort(got)
	if pods[name].Spec.NodeName != n.Name || !slices.Equal(got, slices.Sorted(slices.Values(addresses))) {
		t.Fatalf("%s is on %s with %v, want %s with %v", name, pods[name].Spec.NodeName, got, n.Name, addresses)
	}
}

// chosenAddress has users choose addresses of pods that do not exist yet.
func chosenAddress(t *Test) {
	n, other := t.Node(1), t.Node(2)
	dir, families := t.pluginDir(), families(t)
	pod := func(name string) string { return t.NS + "/" + name }
	for _, node := range []*cluster.Node{n, other} {
		t.showsRange(node, fmt.Sprint("subnet: ", node.DefaultNetwork().Subnets[0].Masked())) // its agent may be new
	}
	first, second, unused := t.freeAddresses(n, 0), t.freeAddresses(other, 0), t.freeAddresses(n, 1)

	t.reserve(dir, 1, pod("tenant"), first, "Rejected", "may not choose addresses")
	t.allowChoosing()
	t.requestIs("tenant", "Held", families)
	t.Step("an administrator allows it, and the address is held")
	t.Kubectl("delete", "areq", "tenant")
	t.heldFor("tenant", n, nil)

	t.Step("one object has the addresses of a StatefulSet, on %s and %s, before its pods exist", n.Name, other.Name)
	entry := func(name string, addresses []string) string {
		return fmt.Sprintf(`{podName: %s, addresses: ["%s"]}`, name, strings.Join(addresses, `", "`))
	}
	t.Apply("apiVersion: ipam.leasehold.dev/v1alpha1\nkind: AddressRequest\nmetadata: {name: db}\nspec: {entries: [" +
		strings.Join([]string{entry("db-0", first), entry("db-1", second), entry("db-2", unused)}, ", ") + "]}\n")
	t.requestIs("db", "Held", 3*families)
	t.heldFor("db-0", n, first)
	t.heldFor("db-1", other, second)
	t.heldFor("db-2", n, unused)
	set := t.Echoserver("db", nil, 2, KeptFor("1h"))
	pods := set.Ready()
	t.isFor(pods, "db-0", n, first)
	t.isFor(pods, "db-1", other, second)
	t.Step("each pod was led to the node of its address and has it; recreated")
	t.onSameNodes(pods, set.Recreate())

	t.reserve(dir, 1, t.NS+"/bad", []string{"192.0.2.1"}, "Rejected", "no node has ranges that contain")
	t.addressInUse(dir, n)

	t.Step("the object is deleted: the hold that no pod has had ends, and the pods keep their addresses")
	t.Kubectl("delete", "areq", "db")
	t.heldFor("db-2", n, nil)
	t.Kept(pods, set.Pods())
	t.onSameNodes(pods, set.Recreate())
	set.Scale(0)
	t.heldFor("db-0", n, first)
	t.heldFor("db-1", other, second)
	t.onSameNodes(pods, scaledTo(set, 2))
	set.Scale(0)
}

// allowChoosing lets the users of the scenario's namespace choose addresses until it ends.
func (t *Test) allowChoosing() {
	t.Kubectl("--namespace="+cluster.System, "create", "configmap", "leasehold-limits",
		"--from-literal="+t.NS+".choose=true")
	t.Cleanup(func() {
		t.Kubectl("--namespace="+cluster.System, "delete", "configmap", "leasehold-limits", "--ignore-not-found")
	})
}

// addressInUse requests addresses that pods have, one of them in another namespace, whose names the
// request does not show.
func (t *Test) addressInUse(dir string, n *cluster.Node) {
	var foreign []string
	in := t.otherNamespace(t.NS + "-other")
	in(func() {
		for _, p := range t.Deployment("foreign", n, 1).Ready() {
			foreign = []string{p.Status.PodIP}
		}
	})
	out := t.reserve(dir, 1, t.NS+"/in-use", foreign, "Rejected")
	if strings.Contains(out, "foreign") || strings.Contains(out, t.NS+"-other") {
		t.Fatalf("it names a pod of another namespace: %s", out)
	}
	var taken string
	for _, p := range t.Deployment("taken", n, 1).Ready() {
		taken = p.Status.PodIP
	}
	t.reserveWith(dir, 1, "kubectl leasehold reserve --pod="+t.NS+"/late-0 --when-free --address="+taken, "Waiting",
		t.NS+"/taken-")
	t.Kubectl("delete", "deployment", "taken")
	t.requestIs("late-0", "Held", 1)
	t.Step("the pod that had it is gone, and the address is held")
	t.Kubectl("delete", "areq", "late-0")
	t.noReservation("late-0", n)
	in(t.Clear)
}

// showsRange waits until the NodeAddressPool of a node has a line of a range.
func (t *Test) showsRange(n *cluster.Node, line string) {
	t.Eventually(n.Name+" shows the range with "+line, func() error {
		if out := t.Kubectl("get", "nap", n.Name, "--ignore-not-found", "-o", "yaml"); !strings.Contains(out, line) {
			return errors.New(out)
		}
		return nil
	})
}
