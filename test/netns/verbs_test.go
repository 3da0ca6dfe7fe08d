package netns_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/leasehold-cni/leasehold/test/lab"
)

// TestVersions verifies that the result has the format of the requested CNI version.
func TestVersions(t *testing.T) {
	for _, version := range []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			node := newNode(t)
			net := node.Network("net", version, node.Bridge(node.IPAM("10.1.0.0/24", "fd01::/64")))
			pod := lab.NewPod("default", "db-0", "10")
			sandbox, original := start(t, node, net, pod)
			if version >= "0.4.0" {
				if err := sandbox.Check(net); err != nil {
					t.Errorf("CHECK: %v", err)
				}
			}

			reply := sandbox.Call(net, "ADD") // a repeated ADD prints the same result
			var result struct {
				CNIVersion string
				IPs        []struct{ Version, Address string }
				IP4, IP6   *struct{ IP string }
			}
			if err := json.Unmarshal([]byte(reply.Stdout), &result); err != nil || reply.Exit != 0 {
				t.Fatalf("ADD of the same container: %+v", reply)
			}
			if result.CNIVersion != version && !(version == "0.1.0" && result.CNIVersion == "0.1.0") {
				t.Errorf("the result has version %q", result.CNIVersion)
			}
			old := version < "0.3.0"
			if got := result.IP4 != nil && result.IP6 != nil; got != old {
				t.Errorf("ip4 and ip6 in the result: %t, want %t: %s", got, old, reply.Stdout)
			}
			if got := len(result.IPs) == 2; got == old {
				t.Errorf("ips in the result: %t, want %t: %s", got, !old, reply.Stdout)
			}
			if !old && (result.IPs[0].Version != "") != (version < "1.0.0") {
				t.Errorf("ips[].version is for versions before 1.0.0: %s", reply.Stdout)
			}

			stop(t, sandbox, net)
			if _, address := start(t, node, net, recreated(pod)); address != original {
				t.Errorf("came back with %s, want %s", address, original)
			}
		})
	}
}

// TestUnderTheNameHostLocal verifies that leasehold works as host-local's binary, with a
// configuration of host-local.
func TestUnderTheNameHostLocal(t *testing.T) {
	node := newNode(t)
	node.Install("host-local", lab.Bin("leasehold"))
	net := bridge(node, "10.1.0.0/24", lab.Conf{"type": "host-local"})
	pod := lab.NewPod("default", "db-0", "10")
	first, original := start(t, node, net, pod)
	stop(t, first, net)
	start(t, node, net, lab.NewPod("default", "web-0", ""))
	if _, address := start(t, node, net, recreated(pod)); address != original {
		t.Errorf("came back with %s, want %s", address, original)
	}
}

func TestCheck(t *testing.T) {
	node := newNode(t)
	net := node.Network("net", "1.1.0", node.Bridge(node.IPAM("10.1.0.0/24")))
	sandbox, address := start(t, node, net, lab.NewPod("default", "db-0", "10"))
	check := func(containerID string, prevResult any) error {
		return cniError(t, node.Call(lab.Call{
			Verb: "CHECK", ContainerID: containerID, NetNS: sandbox.NetNS, IfName: sandbox.IfName,
			Args:  sandbox.CNIArgs(),
			Stdin: net.Stdin(lab.Conf{"prevResult": prevResult}),
		}))
	}
	prev := func(address string) any {
		return lab.Conf{"cniVersion": "1.1.0", "ips": []lab.Conf{{"address": address + "/24"}}}
	}

	if err := check(sandbox.ID, prev(address)); err != nil {
		t.Errorf("CHECK of the holder: %v", err)
	}
	if err := check(sandbox.ID, prev("10.1.0.99")); err == nil {
		t.Error("CHECK with another address in prevResult succeeded")
	}
	if err := check("somebody-else", prev(address)); err == nil {
		t.Error("CHECK of another container succeeded")
	}
	stop(t, sandbox, net)
	if err := check(sandbox.ID, prev(address)); err == nil {
		t.Error("CHECK after DEL succeeded")
	}
}

// TestGC verifies that GC releases the attachments of its pool that are not in the list. Without a
// list it releases none, with an empty one all.
func TestGC(t *testing.T) {
	for _, tc := range []struct {
		name  string
		valid func(keep *lab.Sandbox) lab.Conf
		bound []string // the pods that are bound afterwards
	}{
		{"no list", func(*lab.Sandbox) lab.Conf { return nil }, []string{"keep", "lost", "elsewhere"}},
		{"null", func(*lab.Sandbox) lab.Conf { return lab.Conf{"cni.dev/valid-attachments": nil} },
			[]string{"elsewhere"}},
		{"an empty list", func(*lab.Sandbox) lab.Conf { return lab.Conf{"cni.dev/valid-attachments": []any{}} },
			[]string{"elsewhere"}},
		{"a list", func(keep *lab.Sandbox) lab.Conf {
			return lab.Conf{"cni.dev/valid-attachments": []lab.Conf{{"containerID": keep.ID, "ifname": "eth0"}}}
		}, []string{"keep", "elsewhere"}},
		{"the older key", func(keep *lab.Sandbox) lab.Conf {
			return lab.Conf{"cni.dev/attachments": []lab.Conf{{"containerID": keep.ID, "ifname": "eth0"}}}
		}, []string{"keep", "elsewhere"}},
		{"another interface", func(keep *lab.Sandbox) lab.Conf {
			return lab.Conf{"cni.dev/valid-attachments": []lab.Conf{{"containerID": keep.ID, "ifname": "eth1"}}}
		}, []string{"elsewhere"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			node := newNode(t)
			net := node.Network("net", "1.1.0", node.Bridge(node.IPAM("10.1.0.0/24")))
			other := node.Network("other", "1.1.0", node.Bridge(node.IPAM("10.2.0.0/24")))
			keep, _ := start(t, node, net, lab.NewPod("default", "keep", ""))
			lost, lostAddress := start(t, node, net, lab.NewPod("default", "lost", "10"))
			start(t, node, other, lab.NewPod("default", "elsewhere", ""))

			if err := cniError(t, node.Call(lab.Call{Verb: "GC", Stdin: net.Stdin(tc.valid(keep))})); err != nil {
				t.Errorf("GC: %v", err)
			}
			var bound []string
			for _, name := range []string{"keep", "lost", "elsewhere"} {
				if ls := of(node.Leases("--state", "bound"), lab.Pod{Namespace: "default", Name: name}); len(ls) == 1 {
					bound = append(bound, name)
				}
			}
			if got, want := strings.Join(bound, " "), strings.Join(tc.bound, " "); got != want {
				t.Errorf("bound afterwards: %s, want %s", got, want)
			}
			// GC releases like DEL: the address is held for its window.
			lost.Remove()
			if _, address := start(t, node, net, recreated(lost.Pod)); address != lostAddress {
				t.Errorf("lost came back with %s, want %s", address, lostAddress)
			}
		})
	}
}

// TestGCThroughLibcni verifies GC with libcni, which calls DEL for attachments that are in its
// cache and not in the list (docs/facts.md, "libcni turns GC into DELs").
func TestGCThroughLibcni(t *testing.T) {
	node := newNode(t)
	net := node.Network("net", "1.1.0", node.Bridge(node.IPAM("10.1.0.0/24")))
	keep, _ := start(t, node, net, lab.NewPod("default", "keep", ""))
	lost, original := start(t, node, net, lab.NewPod("default", "lost", "10"))
	lost.Remove()
	if err := net.GC(types.GCAttachment{ContainerID: keep.ID, IfName: "eth0"}); err != nil {
		t.Fatalf("GC: %v", err)
	}
	if ls := of(node.Leases(), lost.Pod); len(ls) != 1 || ls[0].State != "Held" || ls[0].Address != original {
		t.Errorf("leases of the lost pod: %+v, want %s held", ls, original)
	}
	if err := keep.Check(net); err != nil {
		t.Errorf("CHECK of the remaining pod: %v", err)
	}
}

// TestStatus verifies that STATUS fails only if ADD could not work.
func TestStatus(t *testing.T) {
	node := newNode(t)
	net := node.Network("net", "1.1.0", node.Bridge(lab.With(node.IPAM(), fourAddresses(nil))))
	if err := net.Status(); err != nil {
		t.Errorf("STATUS before the first ADD: %v", err)
	}
	for range 4 {
		start(t, node, net, lab.NewPod("default", "pod-"+newName(), ""))
	}
	if err := net.Status(); err != nil {
		t.Errorf("STATUS of a full pool: %v", err)
	}

	broken := lab.NewNode(t)
	brokenNet := broken.Network("net", "1.1.0", broken.Bridge(broken.IPAM("10.1.0.0/24")))
	if err := os.WriteFile(broken.StateDir(), []byte("a file in the folder's place"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantCode(t, brokenNet.Status(), 50)
}
