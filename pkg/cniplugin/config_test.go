package cniplugin

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/cases"
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

func TestAsked(t *testing.T) {
	const subnet = `"ipam":{"subnet":"10.0.0.0/24"}`
	tests := []struct {
		name, fields string
		want         policy.Request
	}{
		{"a runtime without the capability", subnet, policy.Request{}},
		{"a runtime with other capabilities", subnet + `,"runtimeConfig":{"portMappings":[]}`, policy.Request{}},
		{"null for everything", subnet + `,"runtimeConfig":null,"args":null`, policy.Request{}},
		{"a pod without annotations", subnet + `,"runtimeConfig":{"io.kubernetes.cri.pod-annotations":null}`,
			policy.Request{Known: true}},
		{"a pod with other annotations, of any type",
			subnet + `,"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"a":5,"b":null}}`,
			policy.Request{Known: true}},
		{"a reservation name", subnet +
			`,"runtimeConfig":{"io.kubernetes.cri.pod-annotations":` +
			`{"io.kubernetes.cri/reserved-ip-duration":"forever","leasehold.dev/reserve-as":"registry"}}`,
			policy.Request{Known: true, Window: lease.Forever, ReserveAs: "registry"}},
		{"a reservation name without a window, of any type", subnet +
			`,"runtimeConfig":{"io.kubernetes.cri.pod-annotations":{"leasehold.dev/reserve-as":5}}`,
			policy.Request{Known: true}},
		{"forever", subnet +
			`,"runtimeConfig":{"io.kubernetes.cri.pod-annotations":` +
			`{"io.kubernetes.cri/reserved-ip-duration":"forever"}}`,
			policy.Request{Known: true, Window: lease.Forever}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := addRequest(conf(tt.fields), "")
			if err != nil || got.Retention != tt.want {
				t.Errorf("got %+v (%v), want %+v", got.Retention, err, tt.want)
			}
		})
	}
}

func TestPool(t *testing.T) {
	cwd, err := os.Getwd()
	must.Succeed(t, err)
	for dir, want := range map[string]string{
		`null`:        "/var/lib/cni/networks",
		`""`:          "/var/lib/cni/networks",
		`"/a/../b//"`: "/b",
		`"pools"`:     filepath.Join(cwd, "pools"), // relative to the runtime's directory, as with host-local
	} {
		got, err := addRequest(conf(`"ipam":{"subnet":"10.0.0.0/24","dataDir":`+dir+`}`), "")
		if err != nil || got.Pool != (lease.Pool{DataDir: want, Network: "net"}) {
			t.Errorf("dataDir %s: pool %+v (%v), want %s", dir, got.Pool, err, want)
		}
	}
}

func TestAddRequestRejects(t *testing.T) {
	for _, c := range cases.Read(t, "testdata/rejected.txt")[1:] {
		t.Run(c.Name, func(t *testing.T) {
			fields := strings.Replace(c.Given[0], "{256}", strings.Repeat("n", 256), 1)
			_, err := addRequest(conf(fields), "")
			if err == nil {
				t.Fatal("accepted")
			}
			if code := coded(verbAdd, err).Code; code != 7 || !strings.Contains(err.Error(), c.Want[0]) {
				t.Errorf("code %d, error %q; want 7 and %q in it", code, err, c.Want[0])
			}
			if len(err.Error()) > 500 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

// TestRepeatedKeys verifies that a key that is there twice, or in capitals, has the value that
// host-local reads.
func TestRepeatedKeys(t *testing.T) {
	const subnet = `{"type":"host-local","subnet":"10.0.0.0/24","gateway":"10.0.0.9"}`
	const whole, ips = "10.0.0.1-10.0.0.254", `{"cni":{"ips":["10.0.0.5"]}}`
	for fields, want := range map[string]string{ // the set, its gateway, and what is requested
		`"IPAM":` + subnet: whole + " 10.0.0.9 []",
		`"IPAM":` + subnet + `,"ipam":{"rangeEnd":"10.0.0.5"}`:          "10.0.0.1-10.0.0.5 10.0.0.9 []",
		`"ipam":` + subnet + `,"ipam":{"gateway":"10.0.0.7"}`:           whole + " 10.0.0.7 []",
		`"ipam":{"gateway":"10.0.0.7"},"ipam":null,"ipam":` + subnet:    whole + " 10.0.0.9 []",
		`"ipam":` + subnet + `,"args":` + ips + `,"args":null`:          whole + " 10.0.0.9 []",
		`"ipam":` + subnet + `,"args":` + ips + `,"Args":{"cni":null}`:  whole + " 10.0.0.9 []",
		`"ipam":` + subnet + `,"args":` + ips + `,"Args":{"other":"x"}`: whole + " 10.0.0.9 [10.0.0.5]",
	} {
		req, err := addRequest(conf(fields), "")
		if err != nil {
			t.Errorf("%s: %v", fields, err)
			continue
		}
		set := req.Sets[0]
		if got := fmt.Sprint(set, set[0].Gateway, req.Requested); got != want {
			t.Errorf("%s: got %s, want %s", fields, got, want)
		}
	}
	if _, err := addRequest(conf(`"ipam":`+subnet+`,"ipam":null`), ""); err == nil {
		t.Error("null as the last value is no section")
	}
}

func TestValidAttachments(t *testing.T) {
	a := lease.Attachment{ContainerID: "a", IfName: "eth0"}
	tests := []struct {
		name, fields string
		valid        []lease.Attachment
		listed       bool
	}{
		{"no list", `"ipam":{}`, nil, false},
		{"null is an empty list", `"cni.dev/valid-attachments":null`, nil, true},
		{"an empty list", `"cni.dev/valid-attachments":[]`, nil, true},
		{"a list", `"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0","more":1}]`, []lease.Attachment{a},
			true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := loadConfig(conf(tt.fields))
			must.Succeed(t, err)
			valid, listed, err := c.validAttachments()
			if err != nil || listed != tt.listed || !cmp.Equal(valid, tt.valid) {
				t.Errorf("got %v, listed %t (%v); want %v, listed %t", valid, listed, err, tt.valid, tt.listed)
			}
		})
	}
	for fields, want := range map[string]string{
		`"cni.dev/valid-attachments":{}`: `"cni.dev/valid-attachments": want a list, not a JSON object`,
		`"cni.dev/valid-attachments":[{"containerID":"a"}]`: `"cni.dev/valid-attachments"[0]: want both ` +
			`containerID and ifname`,
		`"cni.dev/valid-attachments":[{"ifname":"eth0"}]`: `"cni.dev/valid-attachments"[0]: want both ` +
			`containerID and ifname`,
		`"cni.dev/valid-attachments":[null]`: `"cni.dev/valid-attachments"[0]: want both`,
	} {
		c, err := loadConfig(conf(fields))
		must.Succeed(t, err)
		if _, listed, err := c.validAttachments(); err == nil || listed || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: listed %t, error %v; want %q in it", fields, listed, err, want)
		}
	}
}

// The link of the interface is recorded where pods of other nodes may be on it. leasehold does not
// judge what belongs to the other plugin.
func TestLink(t *testing.T) {
	for fields, want := range map[string]string{
		`"type": "macvlan", "master": "eth1"`:                            "macvlan eth1",
		`"type": "macvlan"`:                                              "macvlan",
		`"type": "ipvlan", "master": "bond0", "isGateway": true`:         "ipvlan bond0",
		`"type": "bridge", "bridge": "br0", "vlan": 7`:                   "bridge br0",
		`"type": "bridge", "isGateway": false, "ipMasq": null`:           "bridge cni0",
		`"type": "bridge", "isGateway": true`:                            "",
		`"type": "bridge", "isDefaultGateway": true`:                     "",
		`"type": "bridge", "ipMasq": true`:                               "",
		`"type": "ptp", "master": "eth1"`:                                "",
		`"type": "flannel"`:                                              "",
		`"type": 7, "master": "eth1"`:                                    "",
		`"type": "macvlan", "master": ["eth1"]`:                          "macvlan",
		`"type": "macvlan", "master": "` + strings.Repeat("ä", 99) + `"`: "macvlan " + strings.Repeat("ä", maxDevice/2),
	} {
		req, err := addRequest(conf(fields+`, "ipam": {"type": "leasehold", "subnet": "10.0.0.0/24"}`), "")
		if err != nil || req.Link != want {
			t.Errorf("%s: %q, %v, want %q", fields, req.Link, err, want)
		}
	}
}
