package cniplugin

import (
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/must"
)

// conf returns a configuration with a name, a version and the given fields.
func conf(fields string) []byte {
	return []byte(`{"cniVersion":"1.0.0","name":"net",` + fields + `}`)
}

// addArgs returns the arguments of an ADD for container c1.
func addArgs(stdin []byte, args string) *skel.CmdArgs {
	return &skel.CmdArgs{ContainerID: "c1", IfName: "eth0", Netns: "/run/netns/none", Args: args, StdinData: stdin}
}

func addRequest(stdin []byte, args string) (ipam.Request, error) {
	c, err := loadConfig(stdin)
	if err != nil {
		return ipam.Request{}, err
	}
	return c.addRequest(addArgs(stdin, args))
}

func texts[T interface{ String() string }](list []T) []string {
	out := []string{}
	for _, e := range list {
		out = append(out, e.String())
	}
	return out
}

func TestAddRequest(t *testing.T) {
	const kubelet = "IgnoreUnknown=1;K8S_POD_NAMESPACE=db;K8S_POD_NAME=db-0;K8S_POD_UID=8d0f;IP=10.0.0.9"
	got, err := addRequest(conf(`
		"ipam": {
			"type": "leasehold", "subnet": "10.0.0.0/24", "rangeEnd": "10.0.0.99",
			"gateway": "10.0.0.254", "unknown": {},
			"ranges": [[{"subnet": "fd00::/64"}, {"subnet": "fd00:1::/64", "rangeStart": "fd00:1::5"}]],
			"dataDir": "/run/pools/", "onBusy": "refuse", "maxWindow": "24h"
		},
		"args": {"cni": {"ips": ["fd00::7"]}},
		"runtimeConfig": {
			"ipRanges": [[{"subnet": "10.1.0.0/16"}]], "ips": ["10.1.0.5/16", "10.0.0.9"], "portMappings": [],
			"io.kubernetes.cri.pod-annotations": {"io.kubernetes.cri/reserved-ip-duration": "10", "other": "x"}
		}`), kubelet)
	must.Succeed(t, err)

	sets := []string{"10.1.0.1-10.1.255.254", "10.0.0.1-10.0.0.99",
		"fd00::1-fd00::ffff:ffff:ffff:ffff,fd00:1::5-fd00:1::ffff:ffff:ffff:ffff"}
	if diff := cmp.Diff(sets, texts(got.Sets)); diff != "" {
		t.Errorf("the runtime's sets, of ipam.subnet, of ipam.ranges: -want +got:\n%s", diff)
	}
	if gateway := got.Sets[1][0].Gateway.String(); gateway != "10.0.0.254" {
		t.Errorf("gateway %s", gateway)
	}
	if diff := cmp.Diff([]string{"10.0.0.9", "fd00::7", "10.1.0.5"}, texts(got.Requested)); diff != "" {
		t.Errorf("requested by CNI_ARGS, args, the runtime, each once: -want +got:\n%s", diff)
	}
	options := policy.Defaults()
	options.OnBusy, options.MaxWindow = policy.Refuse, lease.Window(24*time.Hour)
	got.Sets, got.Requested = nil, nil
	want := ipam.Request{
		Pool:        lease.Pool{DataDir: "/run/pools", Network: "net"},
		ContainerID: "c1", IfName: "eth0", NetnsPath: "/run/netns/none",
		Pod:       ipam.Pod{Namespace: "db", Name: "db-0", UID: "8d0f"},
		Retention: policy.Request{Known: true, Window: lease.Window(10 * time.Minute)},
		Options:   options,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
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
