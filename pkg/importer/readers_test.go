package importer

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/cases"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// entry is a cache file as libcni 1.3 writes it for containerd, with other values of some fields.
func entry(fields string) []byte {
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
	if err := json.Unmarshal([]byte(fields), &f); err != nil {
		panic(err)
	}
	b, err := json.Marshal(f)
	if err != nil {
		panic(err)
	}
	return b
}

// shown is a candidate in short: what testdata/parse.txt wants to see of it.
func shown(c candidate) string {
	text := story(Finding{Lease: decision{}.lease(c)})
	text = strings.Replace(strings.Replace(text, "invalid IP ", "", 1), "None ", "", 1)
	for name, k := range kinds {
		if c.Kind == k {
			text += ", " + name
		}
	}
	for _, word := range []struct {
		is   bool
		text string
	}{
		{c.Netns.Path != "", "in " + c.Netns.Path}, {c.WindowKnown, "known"}, {c.Released, "released"},
		{c.IsHold, "hold"}, {!c.Until.IsZero(), "until " + c.Until.Format(time.RFC3339Nano)},
	} {
		if word.is {
			text += ", " + word.text
		}
	}
	return text
}

// TestParse reads the cases of testdata/parse.txt.
func TestParse(t *testing.T) {
	for _, tt := range cases.Read(t, "testdata/parse.txt") {
		if tt.Name == "" {
			continue
		}
		t.Run(tt.Name, func(t *testing.T) {
			var c candidate
			var addrs []netip.Addr
			var err error
			word, content, _ := strings.Cut(tt.Given[0], " ")
			switch word {
			case "cache":
				content = string(entry(content))
				fallthrough
			case "whole-cache":
				var network string
				c, addrs, network, err = parseCache([]byte(content))
				check.Equal(t, network == "cbr0", c.ContainerID != "", "network", network)
			case "file":
				content, err = strconv.Unquote(content)
				must.Succeed(t, err)
				var known bool
				if c, known = candidateOf(strings.Replace(content, "…", strings.Repeat("c", 4096), 1)); !known {
					err = errors.New("no owner")
				}
			case "kruise":
				c, err = parseKruise([]byte(content))
			}
			got := []string{shown(c)}
			if len(addrs) > 0 {
				got = append(got, "addresses "+strings.Trim(fmt.Sprint(addrs), "[]"))
			}
			if want, ok := strings.CutPrefix(tt.Want[len(tt.Want)-1], "error: "); ok && err != nil &&
				strings.Contains(err.Error(), want) {
				got = append(got, "error: "+want)
			} else if err != nil {
				got = append(got, "error: "+err.Error())
			}
			check.Slices(t, got, tt.Want)
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
	f.Add(entry("{}"))
	f.Add(entry(`{"capabilityArgs": {"io.kubernetes.cri.pod-annotations": null}}`))
	f.Add(entry(`{"capabilityArgs": {"io.kubernetes.cri.pod-annotations": {` +
		`"io.kubernetes.cri/reserved-ip-duration": "10", "leasehold.dev/reserve-as": "registry"}}}`))
	f.Add(entry(`{"result": {"ip4": {"ip": "10.0.0.5/24"}}}`))
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
