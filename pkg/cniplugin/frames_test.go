package cniplugin

import (
	"bytes"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestFramesOfACall verifies docs/architecture.md, "One call": from Add to the function that
// commits there are five frames, closures included.
func TestFramesOfACall(t *testing.T) {
	dir := t.TempDir()
	h, clock, err := host.FromEnv(func(string) string { return "" })
	must.Succeed(t, err)
	var own []string // from Add to transact
	node := &operation.Node{
		Store: store.New(store.Dirs{State: filepath.Join(dir, "state"), Run: filepath.Join(dir, "run")}),
		Host:  h, Plugin: true,
		Clock: func() lease.Instant { // transact calls it in the transaction
			pcs := make([]uintptr, 64)
			frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
			own = nil
			for f, more := frames.Next(); more; f, more = frames.Next() {
				if strings.HasSuffix(f.Function, "(*Store).transact") || own != nil {
					own = append(own, f.Function[strings.LastIndex(f.Function, "/")+1:])
				}
				if strings.HasSuffix(f.Function, "(*Plugin).Add") {
					break
				}
			}
			return clock()
		},
	}
	plugin := Plugin{Service: &ipam.Service{Node: node}, Stdout: &bytes.Buffer{}, Stderr: &bytes.Buffer{},
		NetnsOverride: "1"}
	stdin := fmt.Sprintf(`{"cniVersion":"1.1.0","name":"net","type":"bridge",
		"ipam":{"type":"leasehold","subnet":"10.1.0.0/24","dataDir":%q}}`, filepath.Join(dir, "networks"))
	err = plugin.Add(&skel.CmdArgs{ContainerID: "c1", IfName: "eth0", Netns: "/proc/self/ns/net",
		StdinData: []byte(stdin)})
	slices.Reverse(own)
	if want := 5; err != nil || len(own) != want || !strings.HasSuffix(own[0], "Add") {
		t.Errorf("%v; %d frames, want %d:\n%s", err, len(own), want, strings.Join(own, "\n"))
	}
}
