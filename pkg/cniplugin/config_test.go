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
	if err != nil {
		t.Fatal(err)
	}

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
			policy.Request{Known: true, Window: lease.Forever, Reservation: "registry"}},
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
	if err != nil {
		t.Fatal(err)
	}
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
	const subnet = `"subnet":"10.0.0.0/24"`
	asked := func(annotation string) string {
		return `"ipam":{` + subnet + `},"runtimeConfig":{"io.kubernetes.cri.pod-annotations":` + annotation + `}`
	}
	window := func(w string) string { return asked(`{"io.kubernetes.cri/reserved-ip-duration":` + w + `}`) }
	tests := []struct {
		name, fields, want string
	}{
		{"no ipam", `"bridge":"cni0"`, `ipam: missing; want an object such as`},
		{"a string for ipam", `"ipam":"host-local"`, `ipam: want an object, not a JSON string`},
		{"no ranges", `"ipam":{"type":"leasehold","ranges":[]}`, `ipam: no IP ranges specified; want subnet`},
		{"an address for a subnet", `"ipam":{"subnet":"10.0.0.0"}`,
			`ipam.subnet: "10.0.0.0" is not a network; want one such as 10.0.0.0/24`},
		{"host bits", `"ipam":{"subnet":"10.0.0.7/24"}`,
			`ipam.subnet: 10.0.0.7/24 has host bits set; want the network 10.0.0.0/24`},
		{"an address with a zone", `"ipam":{"subnet":"fe80::/64","gateway":"fe80::1%eth0"}`,
			`ipam.gateway: "fe80::1%eth0" is not an IP address`},
		{"a range of the second set",
			`"ipam":{"ranges":[[{"subnet":"10.0.0.0/24"}],[{"subnet":"10.0.1.0/24","rangeStart":"10.0.0.5"}]]}`,
			`ipam.ranges[1][0].rangeStart: 10.0.0.5 is not in subnet 10.0.1.0/24`},
		{"a range without a subnet", `"ipam":{"ranges":[[{"subnet":"10.0.0.0/24"},{}]]}`,
			`ipam.ranges[0][1].subnet: missing`},
		{"an empty set", `"ipam":{"ranges":[[]]}`, `ipam.ranges[0]: empty range set`},
		{"a string for ranges", `"ipam":{"ranges":"10.0.0.0/24"}`, `ipam.ranges: want a list, not a JSON string`},
		{"two families in a set", `"ipam":{"ranges":[[{"subnet":"10.0.0.0/24"},{"subnet":"fd00::/64"}]]}`,
			`ipam.ranges[0]: ranges 10.0.0.1-10.0.0.254 and fd00::1-fd00::ffff:ffff:ffff:ffff are of different ` +
				`address families`},
		{"overlapping sets", `"ipam":{` + subnet + `,"ranges":[[{"subnet":"10.0.0.0/16"}]]}`,
			`ipam.subnet and ipam.ranges[0] overlap: 10.0.0.1-10.0.0.254 and 10.0.0.1-10.0.255.254 have `},
		{"a subnet that is in ranges, too, beside the runtime's",
			`"ipam":{` + subnet + `,"ranges":[[{"subnet":"fd00::/64"}],[{` + subnet + `}]]},` +
				`"runtimeConfig":{"ipRanges":[[{"subnet":"10.1.0.0/24"}]]}`,
			`ipam.subnet and ipam.ranges[1] overlap: `},
		{"overlapping sets of ranges",
			`"ipam":{"ranges":[[{` + subnet + `}],[{"subnet":"fd00::/64"}],[{` + subnet + `}]]}`,
			`ipam.ranges[0] and ipam.ranges[2] overlap: `},
		{"a set that overlaps with the runtime's", `"ipam":{"ranges":[[{"subnet":"fd00::/64"}],[{` + subnet + `}]]},` +
			`"runtimeConfig":{"ipRanges":[[{"subnet":"10.0.0.0/16"}]]}`,
			`runtimeConfig.ipRanges[0] and ipam.ranges[1] overlap: `},
		{"an object for a set", `"ipam":{"ranges":[[{` + subnet + `}],{"subnet":"10.1.0.0/24"}]}`,
			`ipam.ranges[1]: want a list, not a JSON object`},
		{"a string for a range", `"ipam":{"ranges":[[{` + subnet + `},"10.1.0.0/24"]]}`,
			`ipam.ranges[0][1]: want an object, not a JSON string`},
		{"a number for an address", `"ipam":{"routes":[{"dst":"0.0.0.0/0"}],"ranges":[[{` + subnet +
			`}],[{"subnet":"10.1.0.0/24","rangeStart":5}]]}`,
			`ipam.ranges[1][0].rangeStart: want a string, not a JSON number`},
		{"a list for a subnet", `"ipam":{"ranges":[[{"subnet":["10.0.0.0/24"]}]]}`,
			`ipam.ranges[0][0].subnet: want a string, not a JSON array`},
		{"a number for a requested address", `"ipam":{` + subnet + `},"runtimeConfig":{"ips":["10.0.0.9",5]}`,
			`runtimeConfig.ips[1]: want a string, not a JSON number`},
		{"an object for a set of the runtime", `"runtimeConfig":{"ipRanges":[{` + subnet + `}]}`,
			`runtimeConfig.ipRanges[0]: want a list, not a JSON object`},
		{"a number for the type", `"ipam":{"type":5,` + subnet + `}`, `ipam.type: want a string, not a JSON number`},
		{"null for a subnet", `"ipam":{"subnet":null,"ranges":[[{` + subnet + `}]]}`,
			`ipam.subnet: "" is not a network`},
		{"no text for a subnet", `"ipam":{"subnet":"","ranges":[[{` + subnet + `}]]}`,
			`ipam.subnet: "" is not a network`},
		{"an invalid address without effect", `"ipam":{"gateway":"x","ranges":[[{` + subnet + `}]]}`,
			`ipam.gateway: "x" is not an IP address`},
		{"the runtime's ranges", `"ipam":{},"runtimeConfig":{"ipRanges":[[{"subnet":"10.0.0.0/31"}]]}`,
			`runtimeConfig.ipRanges[0][0].subnet: 10.0.0.0/31 is too small`},
		{"a list for runtimeConfig", `"ipam":{` + subnet + `},"runtimeConfig":[]`,
			`runtimeConfig: want an object, not a JSON array`},
		{"an invalid requested address", `"ipam":{` + subnet + `},"runtimeConfig":{"ips":["10.0.0.9","x"]}`,
			`runtimeConfig.ips[1]: "x" is not an IP address`},
		{"null for a requested address", `"ipam":{` + subnet + `},"args":{"cni":{"ips":[null]}}`,
			`args.cni.ips[0]: "" is not an IP address`},
		{"a NUL in a directory", `"ipam":{` + subnet + `,"dataDir":"/a\u0000"}`, `ipam.dataDir: "/a\x00" has a NUL`},
		{"an unknown policy", `"ipam":{` + subnet + `,"onBusy":"wait"}`,
			`ipam.onBusy: "wait" is not known; want "new" or "refuse"`},
		{"a list for annotations", asked(`[]`),
			`annotations: want an object, not "[]"`},
		{"a number for the reservation name",
			asked(`{"io.kubernetes.cri/reserved-ip-duration":"10","leasehold.dev/reserve-as":1}`),
			`annotation leasehold.dev/reserve-as: want a string, not "1"`},
		{"a reservation name that is not a label",
			asked(`{"io.kubernetes.cri/reserved-ip-duration":"10","leasehold.dev/reserve-as":"a/b"}`),
			`annotation leasehold.dev/reserve-as: "a/b" is not a reservation name; want at most 63`},
		{"a number for the annotation", window(`10`),
			`annotation io.kubernetes.cri/reserved-ip-duration: want a string, not "10"`},
		{"an annotation that is not a window", window(`" 10 "`),
			`annotation io.kubernetes.cri/reserved-ip-duration: " 10 " is not a window; want whole minutes`},
		{"a network name that is too long for a directory",
			`"ipam":{` + subnet + `},"name":"` + strings.Repeat("n", 256) + `"`, `name: "nnnn`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := addRequest(conf(tt.fields), "")
			if err == nil {
				t.Fatal("accepted")
			}
			if code := coded(verbAdd, err).Code; code != 7 || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("code %d, error %q; want 7 and %q in it", code, err, tt.want)
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
			if err != nil {
				t.Fatal(err)
			}
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
		if err != nil {
			t.Fatal(err)
		}
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
