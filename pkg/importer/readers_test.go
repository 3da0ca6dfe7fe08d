package importer

import (
	"encoding/json"

	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// entry is a cache file as libcni 1.3 writes it for containerd.
func entry(more func(map[string]any)) []byte {
	f := map[string]any{
		"kind": "cniCacheV1", "containerId": "c1", "ifName": "eth0", "networkName": "cbr0", "netns": "/run/netns/db-0",
		"config": "eyJuYW1lIjoiY2JyMCJ9",
		"cniArgs": [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "db"}, {"K8S_POD_NAME", "db-0"},
			{"K8S_POD_INFRA_CONTAINER_ID", "c1"}, {"K8S_POD_UID", "u1"},
		},
		"capabilityArgs": map[string]any{
			"portMappings": []any{},
			annotationsKey: map[string]any{"io.kubernetes.cri/reserved-ip-duration": "10", "other": "x"},
			"cgroupPath":   "/kubepods",
			"dns":          map[string]any{"Servers": nil},
			"bandwidth":    nil,
		},
		"result": map[string]any{
			"cniVersion": "1.0.0",
			"interfaces": []any{map[string]any{"name": "eth0"}},
			"ips": []any{
				map[string]any{"interface": 0, "address": "10.0.0.5/24", "gateway": "10.0.0.1"},
				map[string]any{"interface": 0, "address": "fd00::5/64"},
			},
		},
	}
	if more != nil {
		more(f)
	}
	b, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	return b
}

func set(key string, value any) func(map[string]any) {
	return func(f map[string]any) { f[key] = value }
}

func annotations(value any) func(map[string]any) {
	return set("capabilityArgs", map[string]any{annotationsKey: value})
}

func TestParseCache(t *testing.T) {
	whole := candidate{
		Namespace: "db", Name: "db-0", UID: "u1", ContainerID: "c1", IfName: "eth0",
		Netns: lease.Netns{Path: "/run/netns/db-0"}, Window: lease.Window(10 * time.Minute), WindowKnown: true,
	}
	with := func(change func(*candidate)) candidate { c := whole; change(&c); return c }
	unknown := func(c *candidate) { c.Window, c.WindowKnown = 0, false }
	v4 := []string{"10.0.0.5"}
	for _, tt := range []struct {
		name      string
		file      []byte
		want      candidate
		addresses []string
		problem   string
	}{
		{"containerd's", entry(nil), whole, []string{"10.0.0.5", "fd00::5"}, ""},
		{"a reservation name", entry(annotations(map[string]any{"io.kubernetes.cri/reserved-ip-duration": "10",
			"leasehold.dev/reserve-as": "registry"})),
			with(func(c *candidate) { c.ReserveAs = "registry" }), []string{"10.0.0.5", "fd00::5"}, ""},
		{"a reservation name of no pod", entry(func(f map[string]any) {
			annotations(map[string]any{"io.kubernetes.cri/reserved-ip-duration": "10",
				"leasehold.dev/reserve-as": "registry"})(f)
			delete(f, "cniArgs")
		}), with(func(c *candidate) { c.Namespace, c.Name, c.UID = "", "", "" }), []string{"10.0.0.5", "fd00::5"}, ""},
		{"a reservation name without a window", entry(annotations(map[string]any{
			"leasehold.dev/reserve-as": 5})),
			with(func(c *candidate) { c.Window = 0 }), []string{"10.0.0.5", "fd00::5"}, ""},
		{"a result of CNI 0.2",
			entry(set("result", map[string]any{"ip4": map[string]any{"ip": "10.0.0.5/24"},
				"ip6": map[string]any{"ip": "fd00::5/64"}})),
			whole, []string{"10.0.0.5", "fd00::5"}, ""},
		{"a result of CNI 0.3", entry(set("result", map[string]any{
			"ips": []any{map[string]any{"version": "4", "address": "10.0.0.5/24"}}})), whole, v4, ""},
		{"a mapped address", entry(set("result",
			map[string]any{"ips": []any{map[string]any{"address": "::ffff:10.0.0.5/120"}}})), whole, v4, ""},
		{"no result", entry(set("result", nil)), whole, nil, ""},
		{"addresses that are none",
			entry(set("result", map[string]any{"ips": []any{map[string]any{"address": "x"},
				map[string]any{"address": "0.0.0.0/0"}}})), whole, nil, ""},
		{"no netns", entry(func(f map[string]any) { delete(f, "netns") }),
			with(func(c *candidate) { c.Netns.Path = "" }),
			[]string{"10.0.0.5", "fd00::5"}, ""},
		{"no netns, as with older releases, but a result of CNI 0.3", entry(func(f map[string]any) {
			delete(f, "netns")
			f["result"] = map[string]any{"ips": []any{map[string]any{"address": "10.0.0.5/24"}}, "interfaces": []any{
				map[string]any{"name": "cni0"}, map[string]any{"name": "eth0"},
				map[string]any{"name": "eth1", "sandbox": "/run/netns/other"},
				map[string]any{"name": "eth0", "sandbox": "/run/netns/db-0"}}}
		}), whole, v4, ""},
		{"no pod", entry(set("cniArgs", nil)), with(func(c *candidate) { c.Namespace, c.Name, c.UID = "", "", "" }),
			[]string{"10.0.0.5", "fd00::5"}, ""},
		{"a pod that is none",
			entry(set("cniArgs", [][2]string{{"K8S_POD_NAMESPACE", "db"}, {"K8S_POD_NAME", "../../x"}})),
			with(func(c *candidate) { c.Namespace, c.Name, c.UID = "", "", "" }), []string{"10.0.0.5", "fd00::5"},
			`"../../x" in namespace "db" is not a valid pod name`},
		{"a namespace without a pod", entry(set("cniArgs", [][2]string{{"K8S_POD_NAMESPACE", "db"}})),
			with(func(c *candidate) { c.Namespace, c.Name, c.UID = "", "", "" }), []string{"10.0.0.5", "fd00::5"},
			`"" in namespace "db" is not a valid pod name`},
		{"a pod whose name is no label",
			entry(set("cniArgs", [][2]string{{"K8S_POD_NAMESPACE", "db"}, {"K8S_POD_NAME", "db.0"}})),
			with(func(c *candidate) { c.Name, c.UID = "db.0", "" }), []string{"10.0.0.5", "fd00::5"}, ""},
		{"annotations not passed", entry(set("capabilityArgs", nil)), with(unknown), []string{"10.0.0.5", "fd00::5"},
			""},
		{"no annotations", entry(annotations(nil)), with(func(c *candidate) { c.Window = 0 }),
			[]string{"10.0.0.5", "fd00::5"}, ""},
		{"another annotation", entry(annotations(map[string]any{"a": 1})), with(func(c *candidate) { c.Window = 0 }),
			[]string{"10.0.0.5", "fd00::5"}, ""},
		{"a bad window", entry(annotations(map[string]any{policy.Annotation: "soon"})), with(unknown),
			[]string{"10.0.0.5", "fd00::5"}, "soon"},
		{"a window that is a number", entry(annotations(map[string]any{policy.Annotation: 10})), with(unknown),
			[]string{"10.0.0.5", "fd00::5"}, policy.Annotation + ": want a string"},
		{"annotations that are a list", entry(annotations([]any{})), with(unknown), []string{"10.0.0.5", "fd00::5"},
			"annotations"},
		{"cut off", entry(nil)[:200], candidate{}, nil, "JSON"},
		{"empty", nil, candidate{}, nil, "JSON"},
		{"null", []byte("null"), candidate{}, nil, "kind"},
		{"of an older libcni", []byte(`{"cniVersion": "0.3.1", "ips": []}`), candidate{}, nil, "kind"},
		{"no container", entry(set("containerId", "../c1")), candidate{}, nil, "has no valid container id"},
		{"no interface", entry(set("ifName", "eth 0")), candidate{}, nil, "has no valid container id"},
		{"no network", entry(set("networkName", "a/b")), candidate{}, nil, "has no valid container id"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, addrs, network, err := parseCache(tt.file)
			var texts []string
			for _, a := range addrs {
				texts = append(texts, a.String())
			}
			if !reflect.DeepEqual(got, tt.want) || !reflect.DeepEqual(texts, tt.addresses) {
				t.Errorf("\n got %+v %v\nwant %+v %v", got, texts, tt.want, tt.addresses)
			}
			if (err == nil) != (tt.problem == "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("problem %v, want %q", err, tt.problem)
			}
			if (network == "cbr0") != (got.ContainerID != "") {
				t.Errorf("network %q", network)
			}
		})
	}
}

func TestParseFile(t *testing.T) {
	for _, tt := range []struct {
		content string
		want    candidate
		known   bool
	}{
		{"c1\r\neth0", candidate{Kind: fromFile, ContainerID: "c1", IfName: "eth0"}, true},
		{"c1", candidate{Kind: fromFile, ContainerID: "c1"}, true},          // before v0.8.0
		{"c1\n", candidate{Kind: fromFile, ContainerID: "c1"}, true},        // edited by hand
		{"c1\r\neth 0", candidate{Kind: fromFile, ContainerID: "c1"}, true}, // the interface is no name
		{"", candidate{Kind: fromFile}, false},                              // a power cut
		{"\x00\x00\x00\x00", candidate{Kind: fromFile}, false},              // the same, on another file system
		{"#held db/db-0 eth0 fi", candidate{Kind: fromFile}, false},
		{"#held - eth0 cool-down 0 forever -\r\neth0", candidate{Kind: fromHoldFile, IfName: "eth0", Released: true,
			WindowKnown: true}, true},
		{"../c1\r\neth0", candidate{Kind: fromFile}, false},
		{strings.Repeat("c", 4097), candidate{Kind: fromFile}, false},
	} {
		if got, known := candidateOf(tt.content); !reflect.DeepEqual(got, tt.want) || known != tt.known {
			t.Errorf("%.40q: %+v, %v; want %+v, %v", tt.content, got, known, tt.want, tt.known)
		}
	}
}

func TestParseKruise(t *testing.T) {
	base := candidate{Kind: fromKruise, Address: netip.MustParseAddr("10.22.0.5"), ContainerID: "cid", IfName: "eth0",
		IsHold: true, Window: lease.Window(time.Hour), WindowKnown: true}
	with := func(change func(*candidate)) candidate { c := base; change(&c); return c }
	file := func(minutes, more string) string {
		return fmt.Sprintf(`{"containerId":"cid","ifName":"eth0","IPConf":{"address":"10.22.0.5/16",`+
			`"gateway":"10.22.0.1"},"duration":%s%s}`, minutes, more)
	}
	for _, tt := range []struct {
		name, file string
		want       candidate
		problem    string
	}{
		{"in use", file("60", ""), base, ""},
		{"released, as the fork writes it", file("60", `,"releaseTime":"2026-11-21T00:16:09.2Z"`),
			with(func(c *candidate) {
				c.Released, c.Until = true, time.Date(2026, 11, 21, 1, 16, 9, 2e8, time.UTC)
			}), ""},
		{"no time", file("0", ""), with(func(c *candidate) { c.Window = 0 }), ""},
		{"the number that overflowed the fork", file("153722868", ""),
			with(func(c *candidate) { c.Window = policy.MaxWindow }), ""},
		{"a container that is none", strings.Replace(file("60", ""), "cid", "../x", 1),
			with(func(c *candidate) { c.ContainerID = "" }), ""},
		{"negative", file("-1", ""), candidate{}, "-1 minutes"},
		{"beyond all numbers", file("99999999999999999999", ""), candidate{}, "number"},
		{"a text for a number", file(`"60"`, ""), candidate{}, "duration"},
		{"a time that is none", file("60", `,"releaseTime":"yesterday"`), candidate{}, "yesterday"},
		{"no address", `{"containerId":"cid","ifName":"eth0","duration":60}`, candidate{}, "address"},
		{"no interface", `{"IPConf":{"address":"10.22.0.5/16"},"duration":60}`, candidate{}, "interface"},
		{"null", "null", candidate{}, "null"},
		{"empty", "", candidate{}, "JSON"},
		{"cut off", file("60", "")[:60], candidate{}, "JSON"},
		{"a list", "[]", candidate{}, "array"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseKruise([]byte(tt.file))
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("\n got %+v\nwant %+v", got, tt.want)
			}
			if (err == nil) != (tt.problem == "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("problem %v, want %q", err, tt.problem)
			}
		})
	}
}

// believable is what every parser promises of what it lets through.
func believable(t *testing.T, c candidate) {
	t.Helper()
	switch {
	case c.Name != "" && !hostlocal.IsPod(c.Namespace, c.Name), c.Name == "" && c.Namespace != "",
		c.UID != "" && !hostlocal.IsUID(c.UID), c.ContainerID != "" && !hostlocal.IsContainerID(c.ContainerID),
		c.IfName != "" && !hostlocal.IsIfName(c.IfName), c.Window < 0, c.Window > policy.MaxWindow &&
			c.Window != lease.Forever,
		c.Window != 0 && !c.WindowKnown, c.Netns.Ino != 0,
		c.ReserveAs != "" && (c.Name == "" || !lease.IsReserveAs(c.ReserveAs)):
		t.Errorf("%+v", c)
	}
}

func FuzzParseCache(f *testing.F) {
	f.Add(entry(nil))
	f.Add(entry(annotations(nil)))
	f.Add(entry(annotations(map[string]any{"io.kubernetes.cri/reserved-ip-duration": "10",
		"leasehold.dev/reserve-as": "registry"})))
	f.Add(entry(set("result", map[string]any{"ip4": map[string]any{"ip": "10.0.0.5/24"}})))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, addrs, network, err := parseCache(b)
		believable(t, c)
		if network == "" && (err == nil || len(addrs) > 0) {
			t.Errorf("of no network: %+v %v %v", c, addrs, err)
		}
	})
}

func FuzzParseFile(f *testing.F) {
	f.Add("c1\r\neth0")
	f.Add("#held db/db-0 eth0 hold 3600 1795258800 u1\r\neth0")
	f.Add("#held db/db-0 eth0 hold 3600 1795258800 u1 registry\r\neth0")
	f.Fuzz(func(t *testing.T, content string) {
		c, known := candidateOf(content)
		believable(t, c)
		if !known && !reflect.DeepEqual(c, candidate{Kind: fromFile}) {
			t.Errorf("owner unknown, and %+v", c)
		}
	})
}

func FuzzParseKruise(f *testing.F) {
	f.Add([]byte(`{"containerId":"cid","ifName":"eth0","IPConf":{"address":"10.22.0.5/16"},"duration":60,` +
		`"releaseTime":"2026-11-21T00:16:09.2Z"}`))
	f.Add([]byte("null"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseKruise(b)
		believable(t, c)
		if err == nil && !c.Address.IsValid() {
			t.Errorf("%+v", c)
		}
	})
}
