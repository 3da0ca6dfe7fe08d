package cluster

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
)

func TestConflist(t *testing.T) {
	v4, v6 := netip.MustParsePrefix("10.9.0.0/29"), netip.MustParsePrefix("fd00::/64")
	tests := []struct {
		name    string
		network Network
		version string
		types   string
		has     []string
	}{
		{"flannel as shipped", Network{Name: "cbr0", Type: "flannel"}, "0.3.1", "flannel portmap",
			[]string{`"delegate":{"hairpinMode":true,"isDefaultGateway":true}`, `"ipam":{"type":"leasehold"}`}},
		{"bridge, two families", Network{Name: "a-name-longer-than-a-link-may-have", Type: "bridge",
			Subnets: []netip.Prefix{v4, v6}},
			"1.0.0", "bridge", []string{`"ranges":[[{"subnet":"10.9.0.0/29"}],[{"subnet":"fd00::/64"}]]`}},
		{"ptp with another version and keys", Network{Name: "p", Type: "ptp", Version: "1.1.0",
			Subnets: []netip.Prefix{v4},
			IPAM:    map[string]any{"onBusy": "refuse"}}, "1.1.0", "ptp",
			[]string{`"onBusy":"refuse"`, `"routes":[{"dst":"0.0.0.0/0"}]`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			data, err := tt.network.Conflist("leasehold")
			if err != nil {
				t.Fatal(err)
			}
			var list struct {
				CNIVersion string
				Name       string
				Plugins    []struct {
					Type         string
					Bridge       string
					Capabilities map[string]bool
				}
			}
			if err := json.Unmarshal(data, &list); err != nil {
				t.Fatal(err)
			}
			var types []string
			for _, p := range list.Plugins {
				types = append(types, p.Type)
			}
			if list.CNIVersion != tt.version || list.Name != tt.network.Name || strings.Join(types, " ") != tt.types {
				t.Errorf("%s %s %v, want %s %s %s",
					list.CNIVersion, list.Name, types, tt.version, tt.network.Name, tt.types)
			}
			// Without the capability the runtime does not pass the window to the plugin.
			if !list.Plugins[0].Capabilities["io.kubernetes.cri.pod-annotations"] {
				t.Errorf("the first plugin does not take annotations: %s", data)
			}
			if len(list.Plugins[0].Bridge) > 15 {
				t.Errorf("bridge %q: too long for a link", list.Plugins[0].Bridge)
			}
			compact, _ := json.Marshal(json.RawMessage(data))
			for _, want := range tt.has {
				if !strings.Contains(string(compact), want) {
					t.Errorf("no %s in %s", want, compact)
				}
			}
		})
	}
	if _, err := (Network{Name: "x", Type: "vlan"}).Conflist("leasehold"); err == nil {
		t.Error("an unknown plugin was accepted")
	}
}
