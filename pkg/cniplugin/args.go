package cniplugin

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// cniArgs are the known pairs of CNI_ARGS. Another pair is an error unless IgnoreUnknown is true.
// The pairs come in any order, and of a repeated key the last value counts, as for host-local
// (docs/facts.md, "CNI_ARGS come in any order, and repeated").
type cniArgs struct {
	types.CommonArgs
	IP requestedIP

	K8S_POD_NAMESPACE          types.UnmarshallableString
	K8S_POD_NAME               types.UnmarshallableString
	K8S_POD_UID                types.UnmarshallableString
	K8S_POD_INFRA_CONTAINER_ID types.UnmarshallableString // ignored: CNI_CONTAINERID has it
}

// requestedIP is the requested address; zero if none is requested.
type requestedIP struct{ netip.Addr }

// UnmarshalText parses an address with or without a prefix length.
func (r *requestedIP) UnmarshalText(text []byte) (err error) {
	if r.Addr = (netip.Addr{}); len(text) > 0 {
		r.Addr, err = parseIP(string(text))
	}
	return err
}

// parseArgs parses CNI_ARGS. It returns the requested address, which may be zero, and the pod,
// which is zero if the runtime does not run Kubernetes pods.
func parseArgs(s string) (ip netip.Addr, pod ipam.Pod, err error) {
	var args cniArgs
	if err := types.LoadArgs(s, &args); err != nil {
		return ip, pod, badArgs("%.300s; want KEY=VALUE pairs with semicolons between them, and IgnoreUnknown=1 among "+
			"them if some are not meant for this plugin", strings.TrimPrefix(err.Error(), "ARGS: "))
	}
	pod, err = args.pod()
	return args.IP.Addr, pod, err
}

// badArgs returns an errEnvironment error about CNI_ARGS.
func badArgs(format string, args ...any) error {
	return fmt.Errorf("%w: CNI_ARGS: "+format, append([]any{errEnvironment}, args...)...)
}

// pod returns the pod that CNI_ARGS identifies, or the zero Pod if there is none. It validates the
// names, because they become keys of the store and are printed on terminals.
func (a cniArgs) pod() (ipam.Pod, error) {
	pod := ipam.Pod{Namespace: string(a.K8S_POD_NAMESPACE), Name: string(a.K8S_POD_NAME), UID: string(a.K8S_POD_UID)}
	switch {
	case pod.Namespace == "" && pod.Name == "":
		return ipam.Pod{}, nil // the runtime does not run Kubernetes pods
	case pod.Namespace == "":
		return pod, badArgs("K8S_POD_NAME without K8S_POD_NAMESPACE; want both or neither")
	case pod.Name == "":
		return pod, badArgs("K8S_POD_NAMESPACE without K8S_POD_NAME; want both or neither")
	case !lease.IsNamespace(pod.Namespace):
		return pod, badArgs("K8S_POD_NAMESPACE=%s; want a DNS label of at most 63 characters: a-z, 0-9, and - except "+
			"at the ends", policy.Quote(pod.Namespace))
	case !lease.IsPodName(pod.Name):
		return pod, badArgs("K8S_POD_NAME=%s; want a DNS name of at most 253 characters: labels of a-z, 0-9 and -, "+
			"separated by .", policy.Quote(pod.Name))
	case !lease.IsUID(pod.UID):
		return pod, badArgs("K8S_POD_UID=%s; want at most 128 letters, digits, -, _, : and .", policy.Quote(pod.UID))
	}
	return pod, nil
}
