package scenarios

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/test/e2e/cluster"
	"github.com/leasehold-cni/leasehold/test/e2e/inspect"
)

// freeAddresses returns an address of each family that no lease of the node has, from the end of
// its ranges. skip is how many are passed over.
func (t *Test) freeAddresses(n *cluster.Node, skip int) (free []string) {
	leases, err := inspect.Leases(t.Ctx, n.Machine(), t.Cluster.Leasectl(), true)
	t.Must(err)
	for _, subnet := range n.DefaultNetwork().Subnets {
		addr := nth(subnet, 240)
		isUsed := func() bool {
			return slices.ContainsFunc(leases, func(l cli.Row) bool { return l.Address == addr.String() })
		}
		for left := skip; left > 0 || isUsed(); addr = addr.Prev() {
			if !isUsed() {
				left--
			}
		}
		free = append(free, addr.String())
	}
	return free
}

// nth returns an address of a subnet, which is the 0-th itself.
func nth(subnet netip.Prefix, n int) netip.Addr {
	addr := subnet.Masked().Addr()
	for range n {
		addr = addr.Next()
	}
	return addr
}

// reserve runs `kubectl leasehold reserve`, which must end with a status and print all words, and
// returns what it prints.
func (t *Test) reserve(status int, pod string, addresses []string, words ...string) string {
	command := "kubectl leasehold reserve --pod=" + pod
	for _, a := range addresses {
		command += " --address=" + a
	}
	return t.reserveWith(status, command, words...)
}

func (t *Test) reserveWith(status int, command string, words ...string) string {
	out, err := t.shell(t.TempDir(), fmt.Sprintf("code=0; %s || code=$?; test $code = %d", command, status))
	if err != nil {
		t.Fatalf("%s: %v, want the exit status %d\n%s", command, err, status, out)
	}
	if !containsAll(out, words) {
		t.Fatalf("%s: it does not print %q:\n%s", command, words, out)
	}
	t.Step("$ %s\n    %s", command, strings.ReplaceAll(strings.TrimSpace(out), "\n", "\n    "))
	return out
}

// requestIs waits until all addresses of an AddressRequest have a state.
func (t *Test) requestIs(name, state string, count int) {
	t.Becomes("the addresses of request "+name, strings.Join(slices.Repeat([]string{state}, count), " "), func() any {
		return t.Kubectl("get", "areq", name, "-o", "jsonpath={.status.addresses[*].state}")
	})
}

// heldFor waits until a node shows addresses as held for a pod.
func (t *Test) heldFor(pod string, n *cluster.Node, addresses []string) {
	want := append(slices.Sorted(slices.Values(addresses)), "Held")
	t.Becomes(pod+" on "+n.Name, want, func() any {
		r, _ := t.Reservation(pod, n)
		var got []string
		for _, a := range r.Status.Addresses {
			got = append(got, a.Address)
		}
		slices.Sort(got)
		return append(got, string(r.Status.State))
	})
}

// isFor ends the scenario unless a pod is on a node and has these addresses.
func (t *Test) isFor(pods Pods, name string, n *cluster.Node, want []string) {
	p := pods[name]
	got := strings.Split(addresses(p), ",")
	if p.Spec.NodeName != n.Name || !sets.New(got...).Equal(sets.New(want...)) {
		t.Fatalf("%s is on %s with %v, want %s with %v", name, p.Spec.NodeName, got, n.Name, want)
	}
}

// chosenAddress has users choose addresses of pods that do not exist yet.
func chosenAddress(t *Test) {
	n, other := t.Node(1), t.Node(2)
	families := families(t)
	pod := func(name string) string { return t.NS + "/" + name }
	for _, node := range []*cluster.Node{n, other} {
		t.showsRange(node, fmt.Sprint("subnet: ", node.DefaultNetwork().Subnets[0].Masked())) // its agent may be new
	}
	first, second, unused := t.freeAddresses(n, 0), t.freeAddresses(other, 0), t.freeAddresses(n, 1)

	t.reserve(1, pod("tenant"), first, "Rejected", "may not choose addresses")
	t.allowChoosing()
	t.requestIs("tenant", "Held", families)
	t.Step("an administrator allows it, and the address is held")
	t.Kubectl("delete", "areq", "tenant")
	t.noReservation("tenant", n)

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

	t.unusableAddresses(n)
	t.addressInUse(n)

	t.Step("the object is deleted: the hold that no pod has had ends, and the pods keep their addresses")
	t.Kubectl("delete", "areq", "db")
	t.noReservation("db-2", n)
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

// unusableAddresses requests addresses that no pod can have: each request says why, and takes none.
func (t *Test) unusableAddresses(n *cluster.Node) {
	subnet := n.DefaultNetwork().Subnets[0].Masked()
	last := nth(subnet, 255)
	free := []string{t.freeAddresses(n, 4)[0], t.freeAddresses(n, 5)[0]}
	wrong := "2001:db8::1"
	for i, c := range []struct {
		addresses []string
		words     []string
	}{
		{[]string{"192.0.2.1"}, []string{"no node has ranges that contain"}},
		{[]string{wrong}, []string{"no node has ranges that contain"}},
		{[]string{subnet.Addr().String()}, []string{subnet.Addr().String() + " is"}},
		{[]string{last.String()}, []string{last.String() + " is"}},
		{free, []string{"a pod gets one address of"}},
	} {
		name := fmt.Sprint("bad-", i)
		t.reserve(1, t.NS+"/"+name, c.addresses, append(c.words, "Rejected")...)
	}
	t.reserve(2, t.NS+"/bad", []string{"10.244.3"}, `invalid argument "10.244.3" for "--address"`)
	t.reserve(1, "no-such-namespace/bad", free[:1], `"no-such-namespace" not found`)
	t.reserveWith(1,
		"kubectl leasehold reserve --pod="+t.NS+"/bad-node --node="+t.Node(2).Name+" --address="+free[0],
		"the ranges of node "+t.Node(2).Name+" do not contain")
	t.Refused("apiVersion: ipam.leasehold.dev/v1alpha1\nkind: AddressRequest\nmetadata: {name: bad}\n"+
		"spec: {entries: [{podName: bad, addresses: [nonsense]}]}\n", "spec.entries[0].addresses[0]")
	for _, node := range []*cluster.Node{n, t.Node(2)} {
		for _, l := range t.Leases(node) {
			if strings.HasPrefix(l.Pod, "bad") {
				t.Fatalf("%s has %s", l.Pod, l.Address)
			}
		}
	}
}

// addressInUse requests addresses that pods have, one of them in another namespace, whose names the
// request does not show.
func (t *Test) addressInUse(n *cluster.Node) {
	var foreign []string
	in := t.otherNamespace(t.NS + "-other")
	in(func() {
		for _, p := range t.Deployment("foreign", n, 1).Ready() {
			foreign = []string{p.Status.PodIP}
		}
	})
	out := t.reserve(1, t.NS+"/in-use", foreign, "Rejected")
	if strings.Contains(out, "foreign") || strings.Contains(out, t.NS+"-other") {
		t.Fatalf("it names a pod of another namespace: %s", out)
	}
	var taken string
	for _, p := range t.Deployment("taken", n, 1).Ready() {
		taken = p.Status.PodIP
	}
	t.reserveWith(1, "kubectl leasehold reserve --pod="+t.NS+"/late-0 --when-free --address="+taken, "Waiting",
		t.NS+"/taken-")
	t.Kubectl("delete", "deployment", "taken")
	t.requestIs("late-0", "Held", 1)
	t.Step("the pod that had it is gone, and the address is held")
	t.Kubectl("delete", "areq", "late-0")
	t.noReservation("late-0", n)
	in(t.Clear)
}

// chosenShared has two nodes in a macvlan network with the same ranges: the request has to name the
// node, and the pod is led there and has the address on its second interface.
func chosenShared(t *Test) {
	subnet := netip.MustParsePrefix("10.252.0.0/24")
	lan := cluster.Network{Name: "lan", Type: "macvlan", Subnets: []netip.Prefix{subnet}}
	other := t.Node(3)
	for _, n := range []*cluster.Node{t.Node(2), other} {
		t.Networks(n, n.DefaultNetwork(), lan)
		t.secondInterfaces(n)
		// A node shows a second network once a pod has used it. With the same ranges, two pods at
		// the same time would have the same address.
		t.Deployment("first", n, 1).Ready()
		t.showsRange(n, "end: 10.252.0.254")
		t.Clear()
	}
	for _, n := range []*cluster.Node{t.Node(2), other} {
		t.Kubectl("wait", "--for=condition=AddressesShared", "nap/"+n.Name, "--timeout=5m")
	}
	found := t.clusterDoctor().finds("AddressesShared")
	for _, f := range found {
		if len(found) != 2 || strings.Contains(f.What, other.DefaultNetwork().Name) {
			t.Fatalf("doctor finds %+v, want both nodes, and no shared range of the default network", found)
		}
	}
	const address = "10.252.0.77"
	t.allowChoosing()
	reserve := "kubectl leasehold reserve --address=" + address + " --interface=eth1 --pod=" + t.NS + "/db-0"
	t.reserveWith(1, reserve, "Rejected", "name one in nodeName")
	t.Kubectl("delete", "areq", "db-0")
	t.reserveWith(0, reserve+" --node="+other.Name, "Held")
	t.heldFor("db-0", other, []string{address})

	set := t.Echoserver("db", nil, 1, KeptFor("1h"))
	before := set.Ready()["db-0"]
	lines := t.interfacesOf(other, before)
	if before.Spec.NodeName != other.Name || !strings.Contains(lines, "eth1:["+address) {
		t.Fatalf("db-0 is on %s with %s, want %s with %s", before.Spec.NodeName, lines, other.Name, address)
	}
	t.Step("db-0 was led to %s and has %s", other.Name, lines)
	if again := t.interfacesOf(other, set.Recreate()["db-0"]); again != lines {
		t.Fatalf("db-0 had %s and has %s", lines, again)
	}
}

// showsRange waits until the NodeAddressPool of a node has a line of a range.
func (t *Test) showsRange(n *cluster.Node, line string) {
	t.Until(n.Name+" shows the range with "+line, func() bool {
		return strings.Contains(t.Kubectl("get", "nap", n.Name, "--ignore-not-found", "-o", "yaml"), line)
	})
}

// secondInterfaces gives pods of a node an interface in each of its first two networks, until the
// scenario ends.
func (t *Test) secondInterfaces(n *cluster.Node) {
	t.Must(n.Stop(t.Ctx, cluster.ContainerRuntime))
	t.Must(n.StartRuntime(t.Ctx, cluster.Runtime{Networks: 2}))
	t.Cleanup(func() {
		t.Clear() // the DELs need both networks
		t.Must(n.Stop(t.Ctx, cluster.ContainerRuntime))
		t.Must(n.StartRuntime(t.Ctx, cluster.Runtime{}))
	})
}
