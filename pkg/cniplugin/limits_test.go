package cniplugin

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// The longest names are accepted.
func TestLongestNames(t *testing.T) {
	for over, want := range map[int]bool{0: true, 1: false} {
		name := strings.Repeat("n", maxNetworkName+over)
		if _, err := loadConfig([]byte(`{"name":"` + name + `","ipam":{}}`)); (err == nil) != want {
			t.Errorf("a network name of %d bytes: %v", len(name), err)
		}
		c, err := loadConfig(conf(`"ipam":{"subnet":"10.0.0.0/24"}`))
		if err != nil {
			t.Fatal(err)
		}
		args := &skel.CmdArgs{ContainerID: strings.Repeat("c", maxContainerID+over), IfName: "eth0"}
		if _, err := c.request(args); (err == nil) != want {
			t.Errorf("a container ID of %d bytes: %v", len(args.ContainerID), err)
		}
	}
}

// A DEL and a STATUS know the pool, the sets and the options of a valid configuration.
func TestPoolHint(t *testing.T) {
	hintOf := func(stdin []byte) ipam.PoolHint {
		c, err := loadConfig(stdin)
		if err != nil {
			t.Fatal(err)
		}
		return c.poolHint()
	}
	hint := hintOf(conf(`"ipam":{"dataDir":"/run/x","subnet":"10.0.0.0/24","onBusy":"refuse"}`))
	if hint.Pool.DataDir != "/run/x" || hint.Pool.Network != "net" || len(hint.Sets) != 1 || hint.Options == nil ||
		hint.Options.OnBusy != policy.Refuse {
		t.Errorf("%+v", hint)
	}
	hint = hintOf(conf(`"ipam":{"dataDir":"/run/x","subnet":"10.0.0.0/24","maxHeldShare":7}`))
	if hint.Pool.DataDir != "/run/x" || len(hint.Sets) != 1 || hint.Options != nil {
		t.Errorf("with an invalid option: %+v", hint)
	}
	hint = hintOf(conf(`"ipam":{"dataDir":5,"subnet":"10.0.0.0/24"}`))
	if hint.Pool.DataDir != "" || hint.Sets != nil || hint.Options != nil {
		t.Errorf("with an invalid directory: %+v", hint)
	}
}

// Each call is logged with its verb, its result and its times.
func TestCallsAreLogged(t *testing.T) {
	for verb, run := range map[string]func(p *Plugin) error{
		verbAdd:    func(p *Plugin) error { return p.Add(addArgs(conf(`"ipam":{"subnet":"10.0.0.0/24"}`), "")) },
		verbDel:    func(p *Plugin) error { return p.Del(addArgs(conf(`"ipam":{"subnet":"10.0.0.0/24"}`), "")) },
		verbStatus: func(p *Plugin) error { return p.Status(addArgs(conf(`"ipam":{"subnet":"10.0.0.0/24"}`), "")) },
		verbCheck:  func(p *Plugin) error { return p.Check(addArgs([]byte(`{`), "")) },
	} {
		var calls []store.Call
		p, _, _ := plugin(&recorder{})
		p.NetnsOverride, p.LogCall = "1", func(c store.Call) { calls = append(calls, c) }
		err := run(p)
		if len(calls) != 1 || calls[0].Verb != verb || (calls[0].Result == "ok") != (err == nil) || calls[0].Took <= 0 {
			t.Errorf("%s: %v, logged %+v", verb, err, calls)
		}
	}
}

func TestResolvConfThatCannotBeRead(t *testing.T) {
	long := "nameserver 10.0.0.53\n" + strings.Repeat("x", 100000)
	if dns, err := parseResolvConf(strings.NewReader(long)); err == nil {
		t.Errorf("a line that is too long: %+v", dns)
	}
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte("nameserver 10.0.0.53\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	opened := func() int {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	read := func() {
		dns, err := readResolvConf(value{"ipam.resolvConf", []byte(`"` + path + `"`)})
		if err != nil || len(dns.Nameservers) != 1 {
			t.Errorf("%+v, %v", dns, err)
		}
	}
	read()
	before := opened()
	for range 20 {
		read()
	}
	if after := opened(); after > before+10 {
		t.Errorf("%d descriptors before, %d after", before, after)
	}
}

// A value of another type is not an absent one.
func TestValuesOfAnotherType(t *testing.T) {
	for _, raw := range []string{`5`, `[]`, `{}`, `true`} {
		v := value{"ipam.gateway", []byte(raw)}
		if addr, err := v.addr(); err == nil || addr.IsValid() {
			t.Errorf("%s is the address %s", raw, addr)
		}
		r, err := readRange(value{"ipam.ranges[0][0]", []byte(`{"subnet":` + raw + `}`)})
		if err == nil || r.Subnet.IsValid() {
			t.Errorf("%s is the subnet of %v", raw, r)
		}
	}
	if _, err := readRange(value{"ipam.ranges[0][0]", []byte(`5`)}); err == nil {
		t.Error("5 is a range")
	}
}

// An ADD in the plugin's own namespace is rejected, and without a file of its own it is not
// compared.
func TestOwnNetns(t *testing.T) {
	p := &Plugin{}
	if err := p.checkNetns(&skel.CmdArgs{Netns: "/proc/self/ns/net"}); err == nil {
		t.Error("the plugin's own namespace is accepted")
	}
	for _, override := range []string{"1", "true", "TRUE"} {
		if err := (&Plugin{NetnsOverride: override}).checkNetns(&skel.CmdArgs{Netns: "/proc/self/ns/net"}); err != nil {
			t.Errorf("overridden by %q: %v", override, err)
		}
	}
	for _, path := range []string{"/does/not/exist", "/dev/null", ""} {
		if err := p.checkNetns(&skel.CmdArgs{Netns: path}); err != nil {
			t.Errorf("%q: %v", path, err)
		}
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- p.checkNetns(&skel.CmdArgs{Netns: fifo}) }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("a FIFO blocks")
	}
	var out bytes.Buffer
	if err := printResult(&out, "1.0.0", ipam.Result{}, extras{}); err != nil ||
		!strings.Contains(out.String(), `"cniVersion": "1.0.0"`) {
		t.Errorf("%s, %v", &out, err)
	}
}

func TestRequestedAddress(t *testing.T) {
	for text, want := range map[string]string{
		`"10.0.0.5"`: "10.0.0.5", `"10.0.0.5/24"`: "10.0.0.5", `"fd00::5"`: "fd00::5",
		`5`: "", `null`: "", `""`: "", ``: "", `"10.0.0.5/x"`: "", `["10.0.0.5"]`: "",
	} {
		got, err := value{"ips", []byte(text)}.requested()
		if (err == nil) != (want != "") || want != "" && got.String() != want || err != nil && got.IsValid() {
			t.Errorf("%s: %s, %v; want %q", text, got, err, want)
		}
	}
}
