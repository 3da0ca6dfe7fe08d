package cniplugin

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// The known keys of CNI_ARGS. A pair with another key is an error unless IgnoreUnknown is true.
const (
	keyIgnoreUnknown = "IgnoreUnknown"
	keyIP            = "IP"
	keyNamespace     = "K8S_POD_NAMESPACE"
	keyName          = "K8S_POD_NAME"
	keyUID           = "K8S_POD_UID"
	keySandbox       = "K8S_POD_INFRA_CONTAINER_ID" // ignored: CNI_CONTAINERID has the same value
)

// cniArgs contains the validated values of CNI_ARGS.
type cniArgs struct {
	pod ipam.Pod
	ip  netip.Addr // the requested address; zero if none is requested
}

// parseArgs parses CNI_ARGS, a list of KEY=VALUE pairs separated by semicolons. The pairs are in
// any order, and a key may be repeated, because runtimes append to the CNI_ARGS of their own
// environment (docs/facts.md, "CNI_ARGS come in any order, and repeated"). The last IP and the last
// IgnoreUnknown are used, as with host-local. A key that identifies the pod must have the same
// value each time.
func parseArgs(s string) (cniArgs, error) {
	var out cniArgs
	if s == "" {
		return out, nil
	}
	pod := map[string]string{}
	ignore, unknown := false, ""
	for pair := range strings.SplitSeq(s, ";") {
		key, value, found := strings.Cut(pair, "=")
		if !found || strings.Contains(value, "=") {
			return out, badArgs("invalid pair %s; want KEY=VALUE pairs with semicolons between them",
				policy.Quote(pair))
		}
		var err error
		switch key {
		case keyIgnoreUnknown:
			ignore, err = parseBool(value)
		case keyIP:
			out.ip, err = parseRequested(value)
		case keyNamespace, keyName, keyUID, keySandbox:
			err = setOnce(pod, key, value)
		default:
			unknown = pair
		}
		if err != nil {
			return out, err
		}
	}
	if unknown != "" && !ignore {
		return out, badArgs("unknown pair %s; add IgnoreUnknown=1 if it is not meant for this plugin",
			policy.Quote(unknown))
	}
	var err error
	out.pod, err = parsePod(pod)
	return out, err
}

// badArgs returns an errEnvironment error about CNI_ARGS.
func badArgs(format string, args ...any) error {
	return fmt.Errorf("%w: CNI_ARGS: "+format, append([]any{errEnvironment}, args...)...)
}

// parseBool parses the value of IgnoreUnknown.
func parseBool(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "1", "true":
		return true, nil
	case "0", "false":
		return false, nil
	}
	return false, badArgs("%s=%s; want 1, true, 0 or false", keyIgnoreUnknown, policy.Quote(s))
}

// parseRequested parses the value of IP. It returns the zero Addr for "".
func parseRequested(s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, nil
	}
	addr, err := parseIP(s)
	if err != nil {
		return addr, badArgs("%s=%w", keyIP, err)
	}
	return addr, nil
}

// setOnce sets values[key]. It returns an error if the key has another value.
func setOnce(values map[string]string, key, value string) error {
	if old, seen := values[key]; seen && old != value {
		return badArgs("%s is both %s and %s; want one value", key, policy.Quote(old), policy.Quote(value))
	}
	values[key] = value
	return nil
}

// parsePod returns the pod that CNI_ARGS identifies, or the zero Pod if there is none. It validates
// the names, because they become keys of the store and are printed on terminals.
func parsePod(values map[string]string) (ipam.Pod, error) {
	pod := ipam.Pod{Namespace: values[keyNamespace], Name: values[keyName], UID: values[keyUID]}
	switch {
	case pod.Namespace == "" && pod.Name == "":
		return ipam.Pod{}, nil // the runtime does not run Kubernetes pods
	case pod.Namespace == "":
		return pod, badArgs("%s without %s; want both or neither", keyName, keyNamespace)
	case pod.Name == "":
		return pod, badArgs("%s without %s; want both or neither", keyNamespace, keyName)
	case !lease.IsNamespace(pod.Namespace):
		return pod, badArgs("%s=%s; want a DNS label of at most 63 characters: a-z, 0-9, and - except at the ends",
			keyNamespace, policy.Quote(pod.Namespace))
	case !lease.IsPodName(pod.Name):
		return pod,
			badArgs("%s=%s; want a DNS name of at most 253 characters: labels of a-z, 0-9 and -, separated by .",
				keyName, policy.Quote(pod.Name))
	case !lease.IsUID(pod.UID):
		return pod, badArgs("%s=%s; want at most 128 letters, digits, -, _, : and .", keyUID, policy.Quote(pod.UID))
	}
	return pod, nil
}
