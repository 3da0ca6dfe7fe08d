package policy

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

func decode(t *testing.T, text string) RawConfig {
	t.Helper()
	var r RawConfig
	must.Succeed(t, json.Unmarshal([]byte(text), &r))
	return r
}

func TestRawConfig(t *testing.T) {
	with := func(change func(*Config)) Config {
		c := Defaults()
		change(&c)
		return c
	}
	tests := []struct {
		name, text string
		want       Config
	}{
		{"no field is set", `{}`, Defaults()},
		{"null and empty strings keep the defaults",
			`{"onBusy":null,"busyTimeout":"","maxHeldShare":null,"cniCacheDirs":null,"maxWindow":""}`,
			Defaults()},
		{"every field is set",
			`{"onBusy":"refuse","busyTimeout":"30s","onExhaustion":"yield","maxWindow":"24h","maxHeldShare":0.5,
			  "coolDown":"0s","defaultWindow":"10","cniCacheDirs":["/run/cni/","/a/../b"]}`,
			Config{OnBusy: Refuse, BusyTimeout: 30 * time.Second, OnExhaustion: Yield,
				MaxWindow:    lease.Window(24 * time.Hour),
				MaxHeldShare: 0.5, DefaultWindow: lease.Window(10 * time.Minute), CNICacheDirs: []string{"/run/cni",
					"/b"}}},
		{"the defaults, set explicitly",
			`{"onBusy":"new","onExhaustion":"fair","busyTimeout":"2m","coolDown":"2m","maxHeldShare":1}`,
			Defaults()},
		{"maxHeldShare 0", `{"maxHeldShare":0}`, with(func(c *Config) { c.MaxHeldShare = 0 })},
		{"maxWindow forever is no limit", `{"maxWindow":"forever"}`, Defaults()},
		{"defaultWindow 0", `{"defaultWindow":"0"}`, Defaults()},
		{"defaultWindow forever", `{"defaultWindow":"forever"}`,
			with(func(c *Config) { c.DefaultWindow = lease.Forever })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := decode(t, tt.text).Config()
			must.Succeed(t, err)
			check.NoDiff(t, cmp.Diff(tt.want, got))
		})
	}
}

func TestRawConfigRejects(t *testing.T) {
	tests := []struct{ text, want string }{
		{`{"onBusy":"wait"}`, `ipam.onBusy: "wait" is not known; want "new" or "refuse"`},
		{`{"onBusy":"New"}`, `ipam.onBusy: "New"`},
		{`{"onExhaustion":"Fair"}`, `ipam.onExhaustion: "Fair"`},
		{`{"onExhaustion":"evict"}`, `ipam.onExhaustion: "evict" is not known; want "fail", "fair" or "yield"`},
		{`{"busyTimeout":"2"}`, `ipam.busyTimeout: "2" is not accepted; want a duration such as "2m"`},
		{`{"busyTimeout":"-1s"}`, `ipam.busyTimeout: "-1s"`},
		{`{"coolDown":"100000h"}`, `ipam.coolDown: "100000h"`},
		{`{"maxWindow":"0"}`, `ipam.maxWindow: "0" would disable retention`},
		{`{"maxWindow":"1e3"}`, `ipam.maxWindow: "1e3" is not a window; want whole minutes`},
		{`{"defaultWindow":" 10 "}`, `ipam.defaultWindow: " 10 " is not a window`},
		{`{"maxHeldShare":1.01}`, `ipam.maxHeldShare: 1.01 is not accepted; want a share`},
		{`{"maxHeldShare":-1}`, `ipam.maxHeldShare: -1`},
		{`{"cniCacheDirs":["/ok","results"]}`,
			`ipam.cniCacheDirs[1]: "results" is not accepted; want an absolute path`},
		{`{"cniCacheDirs":["/a\u0000b"]}`, `ipam.cniCacheDirs[0]: "/a\x00b"`},
	}
	for _, tt := range tests {
		_, err := decode(t, tt.text).Config()
		check.Error(t, err, tt.want, tt.text)
	}

	nan := math.NaN()
	if _, err := (RawConfig{MaxHeldShare: &nan}).Config(); err == nil {
		t.Error("maxHeldShare NaN was accepted")
	}
	_, err := decode(t, `{"onBusy":"a","coolDown":"b"}`).Config()
	if err == nil || !strings.Contains(err.Error(), "onBusy") || !strings.Contains(err.Error(), "coolDown") {
		t.Errorf("error %v, want both fields in it", err)
	}
}
