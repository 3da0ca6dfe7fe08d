package netns_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

// annotations is the capability with which leasehold gets the annotations of pods.
const annotations = `"capabilities":{"io.kubernetes.cri.pod-annotations":true},`

// writeList writes a network configuration list to a node, in a directory of its own, and the file
// of flannel. "@" in the text stands for a directory of the node.
func writeList(t *testing.T, node *lab.Node, text string) (path string) {
	t.Helper()
	env := "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.0.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
	must.Succeed(t, os.WriteFile(filepath.Join(node.Dir, "subnet.env"), []byte(env), 0o644))
	path = filepath.Join(t.TempDir(), "10-net.conflist")
	must.Succeed(t, os.WriteFile(path, []byte(strings.ReplaceAll(text, "@", node.Dir)), 0o644))
	return path
}

// readList returns the network of a file, as a runtime loads it now.
func readList(t *testing.T, node *lab.Node, path string) *lab.Network {
	t.Helper()
	return node.List(must.Read(t, path))
}

// TestInstallConf names leasehold in lists that real plugins read, whatever the case of their keys.
// Either the next pod gets its address from leasehold, and one that has its address from host-local
// gets it again when it is recreated, or the list is unchanged.
func TestInstallConf(t *testing.T) {
	ranges := `"ranges":[[{"subnet":"10.1.0.0/24"}]],"dataDir":"@/networks"`
	flannel := annotations + `"subnetFile":"@/subnet.env","dataDir":"@/flannel","delegate":{"bridge":"cni8"}`
	for _, c := range []struct {
		name, entry string
		refused     string
	}{
		{"bridge", `{"Type":"bridge",` + annotations + `"Bridge":"br8",` +
			`"IPAM":{"Type":"host-local",` + ranges + `}}`, ""},
		{"bridge with a repeated key", `{"type":"bridge",` + annotations + `"bridge":"br8",` +
			`"ipam":{"type":"dhcp"},"ipam":{"type":"host-local",` + ranges + `}}`, ""},
		{"bridge with two keys", `{"type":"bridge","bridge":"br8",` +
			`"IPAM":{"type":"host-local",` + ranges + `},"ipam":{}}`,
			"of the keys IPAM and ipam one has to go"},
		{"flannel", `{"TYPE":"flannel",` + flannel + `,"IPAM":{"Type":"x"}}`, ""},
		{"flannel without a section", `{"type":"flannel",` + flannel + `}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := newNode(t)
			cniDir(t, node)
			path := writeList(t, node, `{"cniVersion":"0.4.0","name":"net","plugins":[`+c.entry+`]}`)
			before, _ := os.ReadFile(path)
			old, address := start(t, node, readList(t, node, path), lab.NewPod("default", "before", "1h"))
			_, err := node.Leasectl("install", "--conf="+path, "--cni-bin-dir="+filepath.Join(node.Dir, "bin"), "--yes")
			if err != nil || c.refused != "" {
				after, _ := os.ReadFile(path)
				if err == nil || c.refused == "" || !strings.Contains(err.Error(), c.refused) ||
					string(after) != string(before) {
					t.Errorf("install: %v, want %q and no change; the list is %s", err, c.refused, after)
				}
			}
			net := readList(t, node, path)
			start(t, node, net, lab.NewPod("default", "db-0", "1h"))
			isPods := func(l lab.Lease) bool { return l.Pod == "db-0" }
			if leases := node.Leases(); slices.ContainsFunc(leases, isPods) != (c.refused == "") {
				t.Errorf("after %v the leases are %+v", err, leases)
			}
			stop(t, old, net)
			start(t, node, net, lab.NewPod("default", "other", ""))
			_, again := start(t, node, net, old.Pod.Recreated())
			check.Equal(t, again == address, c.refused == "", "the pod that had", address, "of host-local has", again)
		})
	}
}
