package netns_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestFIFOs verifies that no call hangs if a file that the plugin reads is a FIFO.
func TestFIFOs(t *testing.T) {
	for path, fails := range map[string]string{ // part of the error of ADD; "" if it succeeds
		"networks/net/10.1.0.10":   "", // an address's file
		"networks/net/.leasehold":  "", // the directory's mark
		"networks/net/lock":        "", // host-local's
		"networks/net":             "lock",
		"networks/reserved":        "", // the fork's directory
		"cache/results/net-x-eth0": "",
		"cache/results":            "",
		"netns":                    "CNI_NETNS",
		"state/leases.db":          "regular",
		"run/used":                 "regular", // the store's mark
		"run/queue":                "",
		"run/announce":             "",
		"run/calls":                "",
	} {
		t.Run(path, func(t *testing.T) {
			node := lab.NewNode(t)
			ranges := [][]lab.Conf{{{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.13"}}}
			net := node.Network("net", "1.0.0", node.Bridge(lab.With(node.IPAM(), lab.Conf{"ranges": ranges,
				"cniCacheDirs": []string{filepath.Join(node.Dir, "cache/results")}})))
			sandbox := node.Sandbox(lab.NewPod("default", "db-0", "10"))
			fifo := filepath.Join(node.Dir, path)
			if file, ofRun := strings.CutPrefix(path, "run/"); ofRun {
				fifo = filepath.Join(node.RunDir(), file)
			}
			os.MkdirAll(filepath.Dir(fifo), 0o755)
			must.Succeed(t, unix.Mkfifo(fifo, 0o600))
			if path == "netns" {
				sandbox.NetNS = fifo
			}
			for _, verb := range []string{"ADD", "ADD", "CHECK", "DEL", "STATUS", "GC"} {
				call := sandbox.IPAMCall(net, verb)
				call.Wrap = []string{"timeout", "8"}
				reply := node.Call(call)
				switch {
				case reply.Exit == 124:
					t.Fatalf("%s hangs", verb)
				case verb != "ADD":
				case fails == "" && reply.Exit != 0,
					fails != "" && (reply.Err == nil || !strings.Contains(reply.Err.Error(), fails)):
					t.Errorf("ADD: %+v, want %q", reply, fails)
				case path == "networks/net/10.1.0.10" && strings.Contains(reply.Stdout, "10.1.0.10/24"):
					t.Errorf("ADD assigned an address whose file cannot be read: %s", reply.Stdout)
				}
			}
		})
	}
}
