package cniplugin

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
)

func TestParseArgs(t *testing.T) {
	pod := ipam.Pod{Namespace: "db", Name: "db-0", UID: "8d0f"}
	const k8s = "K8S_POD_NAMESPACE=db;K8S_POD_NAME=db-0;K8S_POD_UID=8d0f;K8S_POD_INFRA_CONTAINER_ID=c1"
	tests := []struct {
		story, args string
		want        cniArgs
	}{
		{"none", "", cniArgs{}},
		{"a kubelet's, as containerd sends them", "IgnoreUnknown=1;" + k8s, cniArgs{pod: pod}},
		{"in another order, and all of them known", "K8S_POD_UID=8d0f;K8S_POD_NAME=db-0;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_NAMESPACE=db", cniArgs{pod: pod}},
		{"repeated, as Multus sends them", "IgnoreUnknown=true;" + k8s + ";IgnoreUnknown=1;" + k8s, cniArgs{pod: pod}},
		{"with pairs of others, before the word that they are ignored", "K8S_POD_NAMES=x;" + k8s + ";IgnoreUnknown=True", cniArgs{pod: pod}},
		{"look-alikes name no pod", "IgnoreUnknown=1;X_K8S_POD_NAME=a;X_K8S_POD_NAMESPACE=b;k8s_pod_name=c; K8S_POD_NAME=d", cniArgs{}},
		{"a pod without a UID", "K8S_POD_NAMESPACE=db;K8S_POD_NAME=db-0", cniArgs{pod: ipam.Pod{Namespace: "db", Name: "db-0"}}},
		{"a UID without a pod is nobody's", "K8S_POD_UID=8d0f", cniArgs{}},
		{"empty names are none", "K8S_POD_NAMESPACE=;K8S_POD_NAME=", cniArgs{}},
		{"the longest names", "K8S_POD_NAMESPACE=" + strings.Repeat("n", 63) + ";K8S_POD_NAME=" + strings.Repeat("p", 253),
			cniArgs{pod: ipam.Pod{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("p", 253)}}},
		{"a pod name with dots", "K8S_POD_NAMESPACE=0;K8S_POD_NAME=a.b-c.0", cniArgs{pod: ipam.Pod{Namespace: "0", Name: "a.b-c.0"}}},
		{"an address", "IP=10.0.0.9", cniArgs{ip: netip.MustParseAddr("10.0.0.9")}},
		{"an address with a length", "IP=fd00::9/64", cniArgs{ip: netip.MustParseAddr("fd00::9")}},
		{"an IPv4 address in IPv6 clothes", "IP=::ffff:10.0.0.9", cniArgs{ip: netip.MustParseAddr("10.0.0.9")}},
		{"of two addresses the last", "IP=10.0.0.9;IP=10.0.0.8", cniArgs{ip: netip.MustParseAddr("10.0.0.8")}},
		{"an empty address takes it back", "IP=10.0.0.9;IP=", cniArgs{}},
	}
	for _, tt := range tests {
		t.Run(tt.story, func(t *testing.T) {
			got, err := parseArgs(tt.args)
			if err != nil || got != tt.want {
				t.Errorf("got %+v (%v), want %+v", got, err, tt.want)
			}
		})
	}
}

func TestParseArgsRefuses(t *testing.T) {
	long := strings.Repeat("x", 10000)
	tests := []struct {
		story, args, want string
	}{
		{"a word", "IgnoreUnknown", `invalid pair "IgnoreUnknown"; want KEY=VALUE`},
		{"a trailing semicolon, as host-local does", "IgnoreUnknown=1;", `invalid pair ""`},
		{"two signs of equality", "IgnoreUnknown=1;A=b=c", `invalid pair "A=b=c"`},
		{"an unknown key", "COLOUR=red", `unknown pair "COLOUR=red"; add IgnoreUnknown=1`},
		{"a look-alike", "X_K8S_POD_NAME=a", `unknown pair "X_K8S_POD_NAME=a"`},
		{"an unknown key that is not to be ignored after all", "IgnoreUnknown=1;A=b;IgnoreUnknown=0", `unknown pair "A=b"`},
		{"neither true nor false", "IgnoreUnknown=yes", `IgnoreUnknown="yes"; want 1, true, 0 or false`},
		{"no address", "IP=10.0.0", `IP="10.0.0" is no IP address; want one such as 10.0.0.7`},
		{"no address, though another follows", "IP=x;IP=10.0.0.9", `IP="x"`},
		{"two pods at once", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_NAME=c", `K8S_POD_NAME is both "b" and "c"`},
		{"two namespaces at once", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_NAMESPACE=c", `K8S_POD_NAMESPACE is both`},
		{"two UIDs at once", "K8S_POD_UID=a;K8S_POD_UID=b", `K8S_POD_UID is both`},
		{"two sandboxes at once", "K8S_POD_INFRA_CONTAINER_ID=a;K8S_POD_INFRA_CONTAINER_ID=b", `K8S_POD_INFRA_CONTAINER_ID is both`},
		{"a namespace without a pod", "K8S_POD_NAMESPACE=a", "K8S_POD_NAMESPACE without K8S_POD_NAME"},
		{"a pod without a namespace", "K8S_POD_NAME=a", "K8S_POD_NAME without K8S_POD_NAMESPACE"},
		{"a path for a name", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=../../etc/x", `K8S_POD_NAME="../../etc/x"; want a DNS name`},
		{"a path for a namespace", "K8S_POD_NAMESPACE=../../etc;K8S_POD_NAME=a", `K8S_POD_NAMESPACE="../../etc"; want a DNS label`},
		{"a dot in a namespace", "K8S_POD_NAMESPACE=a.b;K8S_POD_NAME=a", `K8S_POD_NAMESPACE="a.b"`},
		{"a name of 10 kB", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=" + long, `... (10000 bytes); want a DNS name of at most 253`},
		{"a namespace of 64 characters", "K8S_POD_NAMESPACE=" + strings.Repeat("n", 64) + ";K8S_POD_NAME=a", `at most 63 characters`},
		{"a NUL", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b\x00", `K8S_POD_NAME="b\x00"`},
		{"a newline", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b\nc", `K8S_POD_NAME="b\nc"`},
		{"capitals", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=Web", `K8S_POD_NAME="Web"`},
		{"a hyphen at an end", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=web-", `K8S_POD_NAME="web-"`},
		{"a hyphen at the other end", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=-web", `K8S_POD_NAME="-web"`},
		{"an empty part", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=web..0", `K8S_POD_NAME="web..0"`},
		{"a hostile UID", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=../x", `K8S_POD_UID="../x"`},
		{"a long UID", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=" + long, `K8S_POD_UID="xxx`},
	}
	for _, tt := range tests {
		t.Run(tt.story, func(t *testing.T) {
			got, err := parseArgs(tt.args)
			if err == nil {
				t.Fatalf("accepted as %+v", got)
			}
			if !errors.Is(err, errEnvironment) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q, want %q in it", err, tt.want)
			}
			if len(err.Error()) > 500 {
				t.Errorf("an error text of %d bytes", len(err.Error()))
			}
		})
	}
}

// FuzzArgs proves that what is accepted can be a key of the store.
func FuzzArgs(f *testing.F) {
	for _, s := range []string{
		"", "IgnoreUnknown=1;K8S_POD_NAMESPACE=db;K8S_POD_NAME=db-0;K8S_POD_UID=8d0f;K8S_POD_INFRA_CONTAINER_ID=c1;IP=10.0.0.9",
		"K8S_POD_NAME=../../etc/x;K8S_POD_NAMESPACE=a", "A=b;IgnoreUnknown=true", ";;=;", "IP=fd00::1/64;IP=",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseArgs(s)
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Errorf("an error text of %d bytes", len(err.Error()))
			}
			return
		}
		if (got.pod.Name == "") != (got.pod.Namespace == "") || strings.ContainsAny(got.pod.Name+got.pod.Namespace+got.pod.UID, "/\x00\n ;=") ||
			len(got.pod.Name) > 253 || len(got.pod.Namespace) > 63 {
			t.Errorf("accepted as %+q", got.pod)
		}
		if got.ip.Is4In6() || got.ip.Zone() != "" {
			t.Errorf("address %s is not plain", got.ip)
		}
	})
}
