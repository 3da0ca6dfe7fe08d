package cniplugin

import (
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
)

// conf returns a configuration with a name, a version and the given fields.
func conf(fields string) []byte {
	return []byte(`{"cniVersion":"1.0.0","name":"net",` + fields + `}`)
}

// addArgs returns the arguments of an ADD for container c1.
func addArgs(stdin []byte, args string) *skel.CmdArgs {
	return &skel.CmdArgs{ContainerID: "c1", IfName: "eth0", Netns: "/run/netns/none", Args: args, StdinData: stdin}
}

func texts[T interface{ String() string }](list []T) []string {
	out := []string{}
	for _, e := range list {
		out = append(out, e.String())
	}
	return out
}

// FuzzArgs verifies that a pod can be a key of the store.
func FuzzArgs(f *testing.F) {
	for _, s := range []string{
		"",
		"IgnoreUnknown=1;K8S_POD_NAMESPACE=db;K8S_POD_NAME=db-0;K8S_POD_UID=8d0f;K8S_POD_INFRA_CONTAINER_ID=c1;" +
			"IP=10.0.0.9",
		"K8S_POD_NAME=../../etc/x;K8S_POD_NAMESPACE=a", "A=b;IgnoreUnknown=true", ";;=;", "IP=fd00::1/64;IP=",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		ip, pod, noPod, err := parseArgs(s)
		for _, err := range []error{noPod, err} {
			if err != nil && len(err.Error()) > 1000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		}
		if (noPod != nil || err != nil) && pod != (ipam.Pod{}) {
			t.Errorf("pod %+q although %v, %v", pod, noPod, err)
		}
		if (pod.Name == "") != (pod.Namespace == "") ||
			strings.ContainsAny(pod.Name+pod.Namespace+pod.UID, "/\x00\n ;=") ||
			len(pod.Name) > 253 || len(pod.Namespace) > 63 {
			t.Errorf("accepted as %+q", pod)
		}
		if ip.Is4In6() || ip.Zone() != "" {
			t.Errorf("address %s is IPv4-mapped or has a zone", ip)
		}
	})
}
