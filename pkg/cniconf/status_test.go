package cniconf

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/test/built"
	"github.com/leasehold-cni/leasehold/test/must"
)

// node is a node's directories. Its files are: "ours" leasehold's plugin, "other" another program.
type node struct {
	t    *testing.T
	conf string
	bin  string
}

func newNode(t *testing.T, bin map[string]string, conf map[string]string) node {
	t.Helper()
	n := node{t, write(t, conf), t.TempDir()}
	for name, what := range bin {
		n.put(name, what)
	}
	return n
}

func (n node) put(name, what string) {
	n.t.Helper()
	path := filepath.Join(n.bin, name)
	switch what {
	case "ours":
		writeProgram(n.t, path, built.Plugin(n.t))
	case "not executable":
		writeProgram(n.t, path, built.Plugin(n.t))
		must.Succeed(n.t, os.Chmod(path, 0o644))
	case "other":
		copyFile(n.t, "/bin/true", path)
	case "unreadable":
		must.Succeed(n.t, os.Symlink("/proc/self/mem", path))
	default:
		n.t.Fatalf("unknown kind of binary %q", what)
	}
}

func (n node) check() []Status {
	return Check(Load(n.conf, Rules{}), Binaries{n.bin})
}

// stock is what a node has without leasehold.
var stock = map[string]string{"bridge": "other", "flannel": "other", "host-local": "other"}

func with(base map[string]string, more ...string) map[string]string {
	out := map[string]string{}
	for k, v := range base {
		out[k] = v
	}
	for i := 0; i < len(more); i += 2 {
		out[more[i]] = more[i+1]
	}
	return out
}

func single(ipam string) map[string]string {
	return map[string]string{"10-net.conflist": `{"name":"net","plugins":[{"type":"bridge","ipam":` + ipam + `}]}`}
}

func TestCheck(t *testing.T) {
	named := with(stock, "leasehold", "ours")
	replaced := with(stock, "host-local", "ours", "host-local.original", "other")
	flannelConf := map[string]string{"10-flannel.conflist": flannel}
	for _, c := range []struct {
		name string
		bin  map[string]string
		conf map[string]string
		want string // state, reason, network
		says []string
	}{
		{"named", named, single(`{"type":"leasehold"}`), "Active Named net", nil},
		{"in host-local's place", replaced, single(`{"type":"host-local"}`), "Active Replaced net", nil},
		{"in host-local's place, flannel", replaced, flannelConf, "Active Replaced cbr0", nil},
		{"in host-local's place, and named", with(replaced, "leasehold", "ours"), single(`{"type":"leasehold"}`),
			"Active Named net", nil},
		{"chained behind host-local", named, map[string]string{"1.conflist": `{"name":"net","plugins":[
			{"type":"bridge","ipam":{"type":"host-local"}},{"type":"leasehold"}]}`}, "Inactive HostLocalNamed net", nil},

		{"stock configuration", named, single(`{"type":"host-local"}`), "Inactive HostLocalNamed net",
			[]string{"10-net.conflist", "/plugins/0/ipam/type", "set the type to leasehold"}},
		{"stock configuration of flannel", named, flannelConf, "Inactive FlannelDefault cbr0",
			[]string{"10-flannel.conflist", "kube-flannel-cfg"}},
		{"binary overwritten", with(stock, "leasehold", "other"), single(`{"type":"leasehold"}`),
			"Inactive BinaryReplaced net", []string{"10-net.conflist", "/leasehold is another program"}},
		{"binary overwritten, in host-local's place", with(replaced, "host-local", "other"),
			single(`{"type":"host-local"}`), "Inactive BinaryReplaced net", []string{"/host-local is not"}},
		{"wrong directory", stock, single(`{"type":"leasehold"}`), "Inactive BinaryMissing net",
			[]string{"10-net.conflist", "no such file"}},
		{"not executable", with(stock, "leasehold", "not executable"), single(`{"type":"leasehold"}`),
			"Inactive BinaryReplaced net", []string{"not executable"}},
		{"calico", named, map[string]string{"10-calico.conflist": `{"name":"k8s-pod-network","plugins":[
			{"type":"calico","ipam":{"type":"calico-ipam"}},{"type":"portmap"}]}`},
			"Inactive OtherIPAM k8s-pod-network", []string{"10-calico.conflist", "calico-ipam"}},
		{"whereabouts", named, single(`{"type":"whereabouts"}`), "Inactive OtherIPAM net", []string{"whereabouts"}},
		{"dhcp", with(named, "dhcp", "other"), single(`{"type":"dhcp"}`), "Inactive OtherIPAM net", []string{"dhcp"}},
		{"static", named, single(`{"type":"static"}`), "Inactive OtherIPAM net", []string{"static"}},
		{"a plugin that assigns addresses itself", named,
			map[string]string{"05-cilium.conflist": `{"name":"cilium","plugins":[{"type":"cilium-cni"}]}`},
			"Inactive OtherIPAM cilium", []string{"05-cilium.conflist", "cilium-cni"}},
		{"no IPAM", named, single("null"), "Inactive NoIPAM net", []string{"10-net.conflist"}},
		{"no configuration", named, nil, "Inactive NoConfiguration ", []string{"no CNI configuration"}},
		{"not JSON", named, map[string]string{"10.conflist": "{"}, "Inactive InvalidConfiguration ",
			[]string{"10.conflist"}},
		{"another file is first", named, with(single(`{"type":"leasehold"}`), "05-b.conf",
			`{"name":"b","type":"ptp","ipam":{"type":"host-local"}}`), "Inactive HostLocalNamed b",
			[]string{"05-b.conf"}},

		{"Canal", named, map[string]string{"10-canal.conflist": `{"name":"k8s","plugins":[
			{"type":"calico","ipam":{"type":"host-local","subnet":"usePodCidr"}}]}`}, "Inactive HostLocalNamed k8s",
			[]string{"plugin; install leasehold in host-local's place"}},
		{"Canal, in host-local's place", replaced, map[string]string{"10-canal.conflist": `{"name":"k8s","plugins":[
			{"type":"calico","ipam":{"type":"host-local","subnet":"usePodCidr"}}]}`}, "Active Replaced k8s", nil},
		{"Multus with its delegates", named, map[string]string{"00-multus.conf": `{"type":"multus","delegates":[` +
			bridge + `]}`, "10-net.conflist": flannel}, "Active Named net", nil},
		{"Multus with a file", named, nil, "Inactive FlannelDefault cbr0", []string{"10-flannel.conflist"}},
		{"Multus with a network", named, map[string]string{
			"00-multus.conf": `{"type":"multus","clusterNetwork":"cbr0"}`, "10-flannel.conflist": flannel},
			"Unknown DelegatesUnknown ", []string{"00-multus.conf", "cbr0"}},
		{"Multus without delegates", named, map[string]string{"00-multus.conf": `{"type":"multus"}`},
			"Unknown DelegatesUnknown ", []string{"00-multus.conf"}},
		{"an unknown plugin", named, map[string]string{"1.conf": `{"name":"a","type":"mystery"}`},
			"Unknown PluginUnknown a", []string{"1.conf", "mystery"}},
		{"a configuration that cannot be read", named, map[string]string{"1.conf": "-> /proc/self/mem"},
			"Unknown ConfigurationUnreadable ", []string{"1.conf"}},
		{"a binary that cannot be read", with(stock, "leasehold", "unreadable"), single(`{"type":"leasehold"}`),
			"Unknown BinaryUnreadable net", []string{"10-net.conflist", "/leasehold"}},
	} {
		n := newNode(t, c.bin, c.conf)
		if c.name == "Multus with a file" {
			for name, content := range map[string]string{"10-flannel.conflist": flannel, "00-multus.conf": `{
				"type":"multus-shim","clusterNetwork":"/host` + n.conf + `/10-flannel.conflist"}`} {
				must.Succeed(t, os.WriteFile(filepath.Join(n.conf, name), []byte(content), 0o600))
			}
		}
		all := n.check()
		if len(all) != 1 {
			t.Errorf("%s: %+v, want one", c.name, all)
			continue
		}
		s := all[0]
		if got := strings.Join([]string{string(s.State), s.Reason, s.Network}, " "); got != c.want {
			t.Errorf("%s: %s: %s; want %s", c.name, got, s.Message, c.want)
		}
		for _, text := range c.says {
			if !strings.Contains(s.Message, text) {
				t.Errorf("%s: %q does not contain %q", c.name, s.Message, text)
			}
		}
		if s.File == "" || s.Message == "" || strings.HasSuffix(s.Message, ".") {
			t.Errorf("%s: file %q, message %q", c.name, s.File, s.Message)
		}
	}
}

func TestCheckK3s(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "agent/etc/cni/net.d")
	must.Succeed(t, os.MkdirAll(dir, 0o755))
	n := newNode(t, with(stock, "leasehold", "ours"), nil)
	n.conf = dir
	must.Succeed(t, os.WriteFile(filepath.Join(dir, "10-flannel.conflist"), []byte(flannel), 0o600))
	if s := n.check()[0]; s.Reason != K3sDefault || !strings.Contains(s.Message, "--flannel-cni-conf") {
		t.Errorf("%+v, want %s", s, K3sDefault)
	}
}

func TestCheckEveryLoadedNetwork(t *testing.T) {
	n := newNode(t, with(stock, "leasehold", "ours"), map[string]string{"1.conflist": bridge, "2.conflist": flannel})
	all := Check(Load(n.conf, Rules{MaxFiles: -1}), Binaries{n.bin})
	if len(all) != 2 || all[0].State != Active || all[1].State != Inactive || all[1].Network != "cbr0" {
		t.Errorf("%+v, want net active and cbr0 inactive", all)
	}
}

// TestSize verifies how many addresses a network has before the plugin was called.
func TestSize(t *testing.T) {
	named := with(stock, "leasehold", "ours")
	for ipam, want := range map[string]uint64{
		`{"type":"leasehold"}`:                        0,
		`{"type":"leasehold","subnet":"10.0.0.0/24"}`: 253,
		`{"type":"leasehold","subnet":"10.0.0.0/24","rangeStart":"10.0.0.10","rangeEnd":"10.0.0.19"}`: 10,
		`{"type":"leasehold","ranges":[[{"subnet":"10.0.0.0/24"},{"subnet":"10.0.1.0/29"}]]}`:         258,
		`{"type":"leasehold","ranges":[[{"subnet":"10.0.0.0/24"}],[{"subnet":"fd00::/64"}]]}`:         253,
		`{"type":"leasehold","subnet":"usePodCidr"}`:                                                  0,
		`{"type":"leasehold","ranges":[[{"subnet":"10.0.0.0/32"}]]}`:                                  0,
	} {
		if s := newNode(t, named, single(ipam)).check()[0]; s.Size != want {
			t.Errorf("%s: %d, want %d", ipam, s.Size, want)
		}
	}
	file := filepath.Join(t.TempDir(), "subnet.env")
	conf := map[string]string{"10-flannel.conflist": strings.Replace(flannel, `"type":"flannel"`,
		`"type":"flannel","subnetFile":"`+file+`"`, 1)}
	n := newNode(t, with(stock, "host-local", "ours"), conf)
	if s := n.check()[0]; s.Size != 0 {
		t.Errorf("before flannel has a subnet: %d", s.Size)
	}
	env := "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/25\nFLANNEL_IPV6_SUBNET=fd00:1::1/64\n"
	must.Succeed(t, os.WriteFile(file, []byte(env), 0o600))
	if s := n.check()[0]; s.Size != 125 {
		t.Errorf("with flannel's subnets: %d, want 125", s.Size)
	}
}

// TestPool verifies that the pool of a status is the one that leasehold has for the configuration.
func TestPool(t *testing.T) {
	named := with(stock, "leasehold", "ours")
	for ipam, want := range map[string]lease.Pool{
		`{"type":"leasehold"}`:                            {DataDir: policy.DefaultDataDir, Network: "net"},
		`{"type":"leasehold","dataDir":"/run/cni/../a/"}`: {DataDir: "/run/a", Network: "net"},
		`{"type":"leasehold","dataDir":"relative"}`:       {},
		`{"type":"leasehold","subnet":"10.0.0.0"}`:        {DataDir: policy.DefaultDataDir, Network: "net"},
		`null`: {},
	} {
		if s := newNode(t, named, single(ipam)).check()[0]; s.Pool != want {
			t.Errorf("%s: %+v, want %+v", ipam, s.Pool, want)
		}
	}
	for network, want := range map[string]lease.Pool{
		"cbr0": {DataDir: policy.DefaultDataDir, Network: "cbr0"}, "a/b": {},
	} {
		conf := map[string]string{"10-flannel.conflist": strings.Replace(flannel, "cbr0", network, 1)}
		if s := newNode(t, with(stock, "host-local", "ours"), conf).check()[0]; s.Pool != want {
			t.Errorf("flannel with network %s: %+v, want %+v", network, s, want)
		}
	}
}

func TestStdin(t *testing.T) {
	subnets := filepath.Join(t.TempDir(), "subnet.env")
	env := "FLANNEL_NETWORK=10.0.0.0/8\nFLANNEL_SUBNET=10.1.2.1/24\n"
	must.Succeed(t, os.WriteFile(subnets, []byte(env), 0o600))
	for _, c := range []struct{ name, entry, want string }{
		{"as it is", `{"type":"bridge","IPAM":{"Type":"leasehold","subnet":"10.0.0.0/24"}}`,
			`{"IPAM":{"Type":"leasehold","subnet":"10.0.0.0/24"},"cniVersion":"1.0.0","name":"n","type":"bridge"}`},
		{"flannel", `{"type":"flannel","subnetFile":"` + subnets + `","IPAM":{"defaultWindow":"1h"}}`,
			`{"IPAM":{"defaultWindow":"1h"},"cniVersion":"1.0.0","ipam":{"defaultWindow":"1h","ranges":[[{"subnet":` +
				`"10.1.2.0/24"}]],"type":"host-local"},"name":"n","subnetFile":"` + subnets + `","type":"flannel"}`},
		{"flannel has not started", `{"type":"flannel","subnetFile":"/missing"}`, ""},
		{"a second entry", `{"type":"bridge","ipam":{"type":"leasehold"}},{"type":"macvlan","ipam":` +
			`{"type":"leasehold","subnet":"x"}},{"type":"tuning"},{"type":"vlan","ipam":{"type":"static"}}`,
			`{"cniVersion":"1.0.0","ipam":{"type":"leasehold"},"name":"n","type":"bridge"}` +
				`{"cniVersion":"1.0.0","ipam":{"subnet":"x","type":"leasehold"},"name":"n","type":"macvlan"}`},
		{"the plugin resolves values", `{"type":"calico","ipam":{"type":"host-local","subnet":"usePodCidr"}}`, ""},
	} {
		n := newNode(t, with(stock, "leasehold", "ours"), map[string]string{
			"10-n.conflist": `{"cniVersion":"1.0.0","name":"n","plugins":[` + c.entry + `]}`})
		if got := bytes.Join(n.check()[0].Stdin, nil); string(got) != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}
