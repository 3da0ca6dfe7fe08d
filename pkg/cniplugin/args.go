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

	K8S_POD_NAMESPACE          *types.UnmarshallableString // nil if there is no such pair
	K8S_POD_NAME               *types.UnmarshallableString
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
// which is zero if K8S_POD_* name none. Then noPod says why, unless CNI_ARGS have no such names.
func parseArgs(s string) (ip netip.Addr, pod ipam.Pod, noPod, err error) {
	var args cniArgs
	if err := types.LoadArgs(s, &args); err != nil {
		return ip, pod, nil, fmt.Errorf("%w: CNI_ARGS: %.300s; want KEY=VALUE pairs with semicolons between them, and "+
			"IgnoreUnknown=1 among them if some are not meant for this plugin", errEnvironment,
			strings.TrimPrefix(err.Error(), "ARGS: "))
	}
	pod, noPod = args.pod()
	return args.IP.Addr, pod, noPod, nil
}

// pod returns the pod that CNI_ARGS identify, or the zero Pod and the reason. Runtimes that do not
// run pods of Kubernetes pass other names, or one without the other (docs/facts.md, "K8S_POD_NAME
// need not name a pod"); host-local ignores all of them. The names become keys of the store and are
// printed on terminals, so that only valid ones are used.
func (a cniArgs) pod() (ipam.Pod, error) {
	if a.K8S_POD_NAMESPACE == nil && a.K8S_POD_NAME == nil {
		return ipam.Pod{}, nil
	}
	pod := ipam.Pod{UID: string(a.K8S_POD_UID)}
	if a.K8S_POD_NAMESPACE != nil {
		pod.Namespace = string(*a.K8S_POD_NAMESPACE)
	}
	if a.K8S_POD_NAME != nil {
		pod.Name = string(*a.K8S_POD_NAME)
	}
	switch {
	case !lease.IsNamespace(pod.Namespace):
		return ipam.Pod{}, fmt.Errorf("K8S_POD_NAMESPACE=%s names no namespace of Kubernetes; want a DNS label of at "+
			"most 63 characters: a-z, 0-9, and - except at the ends", policy.Quote(pod.Namespace))
	case !lease.IsPodName(pod.Name):
		return ipam.Pod{}, fmt.Errorf("K8S_POD_NAME=%s names no pod of Kubernetes; want a DNS name of at most 253 "+
			"characters: labels of a-z, 0-9 and -, with dots between them", policy.Quote(pod.Name))
	case !lease.IsUID(pod.UID):
		return ipam.Pod{}, fmt.Errorf("K8S_POD_UID=%s is the UID of no pod of Kubernetes; want at most 128 letters, "+
			"digits, dots, colons, - and _", policy.Quote(pod.UID))
	}
	return pod, nil
}
