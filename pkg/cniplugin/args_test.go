package cniplugin

import (
	"errors"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
)

func TestParseArgs(t *testing.T) {
	pod := ipam.Pod{Namespace: "db", Name: "db-0", UID: "8d0f"}
	const k8s = "K8S_POD_NAMESPACE=db;K8S_POD_NAME=db-0;K8S_POD_UID=8d0f;K8S_POD_INFRA_CONTAINER_ID=c1"
	tests := []struct {
		name, args string
		pod        ipam.Pod
		ip         string
	}{
		{"empty", "", ipam.Pod{}, ""},
		{"of a pod, as containerd passes them", "IgnoreUnknown=1;" + k8s, pod, ""},
		{"in another order, without IgnoreUnknown",
			"K8S_POD_UID=8d0f;K8S_POD_NAME=db-0;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_NAMESPACE=db", pod, ""},
		{"repeated, as Multus passes them", "IgnoreUnknown=true;" + k8s + ";IgnoreUnknown=1;" + k8s, pod, ""},
		{"unknown keys before IgnoreUnknown", "K8S_POD_NAMES=x;" + k8s + ";IgnoreUnknown=True", pod, ""},
		{"keys similar to those of the pod",
			"IgnoreUnknown=1;X_K8S_POD_NAME=a;X_K8S_POD_NAMESPACE=b;k8s_pod_name=c; K8S_POD_NAME=d", ipam.Pod{}, ""},
		{"a pod without a UID", "K8S_POD_NAMESPACE=db;K8S_POD_NAME=db-0",
			ipam.Pod{Namespace: "db", Name: "db-0"}, ""},
		{"a UID without a pod is ignored", "K8S_POD_UID=8d0f", ipam.Pod{}, ""},
		{"the longest names", "K8S_POD_NAMESPACE=" + strings.Repeat("n", 63) + ";K8S_POD_NAME=" + strings.Repeat("p",
			253),
			ipam.Pod{Namespace: strings.Repeat("n", 63), Name: strings.Repeat("p", 253)}, ""},
		{"a pod name with dots", "K8S_POD_NAMESPACE=0;K8S_POD_NAME=a.b-c.0",
			ipam.Pod{Namespace: "0", Name: "a.b-c.0"}, ""},
		{"an address", "IP=10.0.0.9", ipam.Pod{}, "10.0.0.9"},
		{"an address with a prefix length", "IP=fd00::9/64", ipam.Pod{}, "fd00::9"},
		{"an IPv4-mapped IPv6 address", "IP=::ffff:10.0.0.9", ipam.Pod{}, "10.0.0.9"},
		{"the last of two pod names", "K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_NAME=c",
			ipam.Pod{Namespace: "a", Name: "c"}, ""},
		{"the last of two addresses wins", "IP=10.0.0.9;IP=10.0.0.8", ipam.Pod{}, "10.0.0.8"},
		{"an empty address revokes the request", "IP=10.0.0.9;IP=", ipam.Pod{}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ip, pod, noPod, err := parseArgs(tt.args)
			if err != nil || noPod != nil || pod != tt.pod || ip.IsValid() != (tt.ip != "") ||
				ip.IsValid() && ip.String() != tt.ip {
				t.Errorf("got %+v, %s (%v, %v), want %+v, %s", pod, ip, noPod, err, tt.pod, tt.ip)
			}
		})
	}
}

// TestParseArgsWithoutPod verifies that names that are not of Kubernetes are no error, and that the
// reason for an operator names the value and what would be a pod.
func TestParseArgsWithoutPod(t *testing.T) {
	long := strings.Repeat("x", 10000)
	const (
		namespace = " names no namespace of Kubernetes; want a DNS label of at most 63"
		pod       = " names no pod of Kubernetes; want a DNS name of at most 253"
		uid       = " is the UID of no pod of Kubernetes; want at most"
	)
	args := func(values ...string) string {
		keys := []string{"K8S_POD_NAMESPACE=", "K8S_POD_NAME=", "K8S_POD_UID="}
		for i := range values {
			values[i] = keys[i] + values[i]
		}
		return strings.Join(values, ";")
	}
	for name, tt := range map[string]struct{ args, want string }{
		"podman 4: a pod without a namespace": {"K8S_POD_NAME=web", `K8S_POD_NAMESPACE=""` + namespace},
		"crictl: an empty namespace":          {args("", "demo"), `K8S_POD_NAMESPACE=""` + namespace},
		"podman 3: capitals and underscores":  {args("My_App", "My_App"), `K8S_POD_NAMESPACE="My_App"` + namespace},
		"critest: capitals": {args("a", "PodSandbox-for-create-test-4a1b"),
			`K8S_POD_NAME="PodSandbox-for-create-test-4a1b"` + pod},
		"CRI-O's tutorial: dots in a namespace": {args("redhat.test.crio", "podsandbox1"),
			`K8S_POD_NAMESPACE="redhat.test.crio"` + namespace},
		"a namespace without a pod":    {"K8S_POD_NAMESPACE=a", `K8S_POD_NAME=""` + pod},
		"both are empty":               {args("", ""), `K8S_POD_NAMESPACE=""` + namespace},
		"a path as a pod name":         {args("a", "../../etc/x"), `K8S_POD_NAME="../../etc/x"` + pod},
		"a path as a namespace":        {args("../../etc", "a"), `K8S_POD_NAMESPACE="../../etc"` + namespace},
		"a name of 10 kB":              {args("a", long), `... (10000 bytes)` + pod},
		"a namespace of 64 characters": {args(strings.Repeat("n", 64), "a"), `K8S_POD_NAMESPACE="nnn`},
		"a NUL":                        {args("a", "b\x00"), `K8S_POD_NAME="b\x00"` + pod},
		"a newline":                    {args("a", "b\nc"), `K8S_POD_NAME="b\nc"` + pod},
		"a hyphen at the end":          {args("a", "web-"), `K8S_POD_NAME="web-"` + pod},
		"a hyphen at the start":        {args("a", "-web"), `K8S_POD_NAME="-web"` + pod},
		"an empty label":               {args("a", "web..0"), `K8S_POD_NAME="web..0"` + pod},
		"a path as a UID":              {args("a", "b", "../x"), `K8S_POD_UID="../x"` + uid},
		"a long UID":                   {args("a", "b", long), `... (10000 bytes)` + uid},
	} {
		t.Run(name, func(t *testing.T) {
			_, pod, noPod, err := parseArgs(tt.args)
			if err != nil || pod != (ipam.Pod{}) {
				t.Fatalf("got %+v (%v), want no pod", pod, err)
			}
			if noPod == nil || !strings.Contains(noPod.Error(), tt.want) || len(noPod.Error()) > 300 {
				t.Errorf("reason %v, want %q in it", noPod, tt.want)
			}
		})
	}
}

func TestParseArgsRejects(t *testing.T) {
	tests := []struct {
		name, args, want string
	}{
		{"a key without a value", "IgnoreUnknown", `invalid pair "IgnoreUnknown"; want KEY=VALUE`},
		{"a trailing semicolon, as host-local does", "IgnoreUnknown=1;", `invalid pair ""`},
		{"two equals signs", "IgnoreUnknown=1;A=b=c", `invalid pair "A=b=c"`},
		{"an unknown key", "COLOUR=red", `unknown args ["COLOUR=red"]; want`},
		{"a key similar to a known one", "X_K8S_POD_NAME=a", `unknown args ["X_K8S_POD_NAME=a"]`},
		{"an unknown key, and IgnoreUnknown repeated with 0", "IgnoreUnknown=1;A=b;IgnoreUnknown=0",
			`unknown args ["A=b"]`},
		{"neither true nor false", "IgnoreUnknown=yes", `"IgnoreUnknown=yes"`},
		{"an invalid address", "IP=10.0.0", `"10.0.0" is not an IP address; want one such as 10.0.0.7`},
		{"an invalid address before a valid one", "IP=x;IP=10.0.0.9", `"IP=x"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, pod, _, err := parseArgs(tt.args)
			if err == nil {
				t.Fatalf("accepted as %+v", pod)
			}
			if !errors.Is(err, errEnvironment) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %q, want %q in it", err, tt.want)
			}
			if len(err.Error()) > 500 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
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
