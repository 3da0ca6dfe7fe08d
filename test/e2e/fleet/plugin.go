package fleet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	current "github.com/containernetworking/cni/pkg/types/100"
	corev1 "k8s.io/api/core/v1"

	"github.com/leasehold-cni/leasehold/pkg/env"
)

type fields = map[string]any

// call runs the IPAM plugin as a runtime and a CNI plugin do, and returns its output.
func (f *Fleet) call(ctx context.Context, verb string, n *Node, p *corev1.Pod, id, netns string) ([]byte, error) {
	select {
	case f.calls <- struct{}{}:
		defer func() { <-f.calls }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	conf, err := json.Marshal(fields{
		"cniVersion": "1.0.0", "name": "fleet", "type": "bridge",
		"ipam": fields{"type": "leasehold", "ranges": []any{[]any{fields{"subnet": n.Subnet.String()}}},
			"dataDir": n.networks(), "cniCacheDirs": []string{n.caches()}},
		"runtimeConfig": fields{"io.kubernetes.cri.pod-annotations": p.Annotations},
	})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, f.Plugin)
	cmd.Env = []string{
		"CNI_COMMAND=" + verb, "CNI_CONTAINERID=" + id, "CNI_IFNAME=eth0", "CNI_NETNS=" + netns, "CNI_PATH=" + f.Dir,
		fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;"+
			"K8S_POD_INFRA_CONTAINER_ID=%s;K8S_POD_UID=%s",
			p.Namespace, p.Name, id, p.UID),
		env.StateDir + "=" + n.Dirs.State, env.RunDir + "=" + n.Dirs.Run,
	}
	cmd.Stdin = bytes.NewReader(conf)
	var out, diag bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diag
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s/%s on %s: %w: %s",
			verb, p.Namespace, p.Name, n.Name, err, strings.TrimSpace(out.String()+diag.String()))
	}
	return out.Bytes(), nil
}

// add calls ADD and returns the pod's address.
func (f *Fleet) add(ctx context.Context, n *Node, p *corev1.Pod, id, netns string) (netip.Addr, error) {
	out, err := f.call(ctx, "ADD", n, p, id, netns)
	if err != nil {
		return netip.Addr{}, err
	}
	var result current.Result
	if err := json.Unmarshal(out, &result); err != nil || len(result.IPs) != 1 {
		return netip.Addr{}, fmt.Errorf("ADD %s/%s: want a result with one address (%v): %s",
			p.Namespace, p.Name, err, out)
	}
	addr, ok := netip.AddrFromSlice(result.IPs[0].Address.IP)
	if !ok {
		return netip.Addr{}, fmt.Errorf("ADD %s/%s: no address: %s", p.Namespace, p.Name, out)
	}
	return addr.Unmap(), nil
}

func (f *Fleet) del(ctx context.Context, n *Node, p *corev1.Pod, id, netns string) error {
	_, err := f.call(ctx, "DEL", n, p, id, netns)
	return err
}

func init() {
	// These variables select the plugin's node. Those of this program must not be inherited.
	for _, name := range []string{env.StateDir, env.RunDir, env.BootIDFile, env.ClockOffset} {
		os.Unsetenv(name)
	}
}
