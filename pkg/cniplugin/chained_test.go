package cniplugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/sandbox"
)

// links is one interface, simulated.
type links struct {
	link    sandbox.Link
	missing error
	refuses error
	set     []string
}

func (l *links) Link(string, string) (sandbox.Link, error) { return l.link, l.missing }

func (l *links) SetMAC(netns, name string, mac net.HardwareAddr) error {
	l.set = append(l.set, netns+" "+name+" "+mac.String())
	return l.refuses
}

func hw(s string) net.HardwareAddr {
	m, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return m
}

const own, former = "02:00:00:00:00:01", "02:00:00:00:00:02"

func chained(version, more string) []byte {
	return []byte(`{"cniVersion":"` + version + `","name":"net","type":"leasehold",` + more + `"prevResult":{"cniVersion":"` + version + `",
		"interfaces":[{"name":"br0","mac":"02:00:00:00:00:99"},{"name":"eth0","mac":"` + own + `","sandbox":"/run/netns/none"},{"name":"eth0","mac":"02:00:00:00:00:98"}],
		"ips":[{"version":"4","address":"10.0.0.2/24","gateway":"10.0.0.1","interface":1},{"version":"6","address":"fd00::2/64","interface":1},{"version":"4","address":"10.9.9.9/24","interface":0}],
		"dns":{"nameservers":["10.0.0.53"]}}}`)
}

func addChained(t *testing.T, r *recorder, l *links, stdin []byte, args string) (out, notes string, err error) {
	t.Helper()
	p, stdout, stderr := plugin(r)
	p.Links, p.NetnsOverride = l, "1"
	err = p.Add(addArgs(stdin, args))
	return stdout.String(), stderr.String(), err
}

func macsOf(t *testing.T, result string) string {
	t.Helper()
	var r struct {
		Interfaces []struct{ Mac string }
		IPs        []struct{ Address string }
		DNS        types.DNS
	}
	if err := json.Unmarshal([]byte(result), &r); err != nil {
		t.Fatalf("%v: %s", err, result)
	}
	if len(r.IPs) != 3 || len(r.DNS.Nameservers) != 1 {
		t.Errorf("the result lost something: %s", result)
	}
	var out []string
	for _, i := range r.Interfaces {
		out = append(out, strings.TrimPrefix(i.Mac, "02:00:00:00:00:"))
	}
	return strings.Join(out, " ")
}

func TestChainedKeepsTheMAC(t *testing.T) {
	for _, version := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		r, l := &recorder{keeps: hw(former)}, &links{link: sandbox.Link{Kind: "veth", MAC: hw(own)}}
		out, notes, err := addChained(t, r, l, chained(version, ""), "K8S_POD_NAME=x")
		if err != nil || notes != "" {
			t.Fatalf("%s: %v %s", version, err, notes)
		}
		if got := macsOf(t, out); got != "99 02 98" {
			t.Errorf("%s: the result has %s, want the lease's in the container's interface alone", version, got)
		}
		if !strings.Contains(out, fmt.Sprintf("%q", version)) {
			t.Errorf("the result is in another version than %s: %s", version, out)
		}
		if fmt.Sprint(l.set) != "[/run/netns/none eth0 "+former+"]" {
			t.Errorf("set: %q", l.set)
		}
		if got := fmt.Sprint(r.addrs, r.has, r.fixed, r.who); got != "[10.0.0.2 fd00::2] "+own+" [false] {c1 eth0}" {
			t.Errorf("the service was asked %s", got)
		}
	}
}

// What must be left alone stays as prevResult says, and nothing fails.
func TestChainedLeavesAlone(t *testing.T) {
	for story, c := range map[string]struct {
		keeps   string
		link    sandbox.Link
		missing error
		err     error
		more    string
		args    string
		asked   int
		noted   bool
	}{
		"its first life":              {keeps: own, link: sandbox.Link{Kind: "veth", MAC: hw(own)}, asked: 1},
		"a lease that is not its own": {link: sandbox.Link{Kind: "veth", MAC: hw(own)}, asked: 1},
		"an ipvlan":                   {keeps: former, link: sandbox.Link{Kind: "ipvlan", MAC: hw(own)}},
		"hardware":                    {keeps: former, link: sandbox.Link{MAC: hw(own)}},
		"no hardware address":         {keeps: former, link: sandbox.Link{Kind: "veth"}},
		"one that the pod asked for":  {keeps: former, link: sandbox.Link{Kind: "veth", MAC: hw(own)}, args: "IgnoreUnknown=1;MAC=" + own, asked: 1},
		"one of the runtime":          {keeps: former, link: sandbox.Link{Kind: "macvlan", MAC: hw(own)}, more: `"runtimeConfig":{"mac":"` + own + `"},`, asked: 1},
		"no interface":                {keeps: former, missing: sandbox.ErrNoLink, noted: true},
		"a busy store":                {link: sandbox.Link{Kind: "veth", MAC: hw(own)}, err: errors.New("busy"), asked: 1, noted: true},
	} {
		t.Run(story, func(t *testing.T) {
			r, l := &recorder{err: c.err}, &links{link: c.link, missing: c.missing}
			if c.keeps != "" {
				r.keeps = hw(c.keeps)
			}
			out, notes, err := addChained(t, r, l, chained("1.0.0", c.more), c.args)
			if err != nil {
				t.Fatal(err)
			}
			if got := macsOf(t, out); got != "99 01 98" || l.set != nil {
				t.Errorf("the result has %s, and %q was set", got, l.set)
			}
			if len(r.calls) != c.asked || (notes != "") != c.noted {
				t.Errorf("the service was asked %q, notes %q", r.calls, notes)
			}
		})
	}
}

// An address that names no interface of the result may be the container's.
func TestChainedWithAnAddressOfNoInterface(t *testing.T) {
	for _, i := range []string{"-1", "3", "99"} {
		stdin := strings.ReplaceAll(string(chained("1.0.0", "")), `"interface":0`, `"interface":`+i)
		r, l := &recorder{keeps: hw(former)}, &links{link: sandbox.Link{Kind: "veth", MAC: hw(own)}}
		if _, _, err := addChained(t, r, l, []byte(stdin), ""); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(r.addrs); got != "[10.0.0.2 fd00::2 10.9.9.9]" {
			t.Errorf("interface %s: the service was asked for %s", i, got)
		}
	}
}

// What the interface cannot have is not the lease's any more.
func TestChainedTellsTheLeaseWhatIsTrue(t *testing.T) {
	r, l := &recorder{keeps: hw(former)}, &links{link: sandbox.Link{Kind: "macvlan", MAC: hw(own)}, refuses: errors.New("address in use")}
	out, notes, err := addChained(t, r, l, chained("1.0.0", ""), "")
	if err != nil {
		t.Fatal(err)
	}
	if got := macsOf(t, out); got != "99 01 98" || !strings.Contains(notes, "address in use") {
		t.Errorf("the result has %s, notes %q", got, notes)
	}
	if fmt.Sprint(r.fixed, r.has) != "[false true] "+own {
		t.Errorf("the service was told %v %s", r.fixed, r.has)
	}
}

func TestChainedOtherVerbsSucceed(t *testing.T) {
	r := &recorder{err: errors.New("nobody should ask")}
	p, stdout, stderr := plugin(r)
	args := addArgs(chained("1.1.0", `"cni.dev/valid-attachments":[],`), "")
	for verb, call := range map[string]func() error{
		"DEL": func() error { return p.Del(args) }, "CHECK": func() error { return p.Check(args) },
		"GC": func() error { return p.GC(args) }, "STATUS": func() error { return p.Status(args) },
	} {
		if err := call(); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
	}
	if r.calls != nil || stdout.String()+stderr.String() != "" {
		t.Errorf("asked %q, said %q %q", r.calls, stdout, stderr)
	}
}

// The type is the plugin's that has us as its IPAM plugin, whatever its name. With an ipam section it is an IPAM call.
func TestAnIPAMCallIsNotChainedWhateverTheTypeIs(t *testing.T) {
	stdin := `{"cniVersion":"1.0.0","name":"net","type":"leasehold","ipam":{"type":"leasehold","ranges":[[{"subnet":"10.0.0.0/24"}]]}}`
	r := &recorder{result: dualStack}
	p, _, _ := plugin(r)
	args := addArgs([]byte(stdin), "")
	for verb, call := range map[string]func() error{"ADD": func() error { return p.Add(args) }, "DEL": func() error { return p.Del(args) }} {
		if err := call(); err != nil {
			t.Errorf("%s: %v", verb, err)
		}
	}
	slices.Sort(r.calls)
	if !slices.Equal(r.calls, []string{"Assign", "Release"}) {
		t.Errorf("the service was asked %q", r.calls)
	}
}

func TestChainedErrors(t *testing.T) {
	for story, c := range map[string]struct {
		stdin string
		code  uint
		words string
	}{
		"nothing before it":       {`{"cniVersion":"1.0.0","name":"net","type":"leasehold"}`, types.ErrInvalidNetworkConfig, "prevResult: missing; an entry"},
		"null":                    {`{"cniVersion":"1.0.0","name":"net","type":"leasehold","prevResult":null}`, types.ErrInvalidNetworkConfig, "prevResult: missing"},
		"no result":               {`{"cniVersion":"1.0.0","name":"net","type":"leasehold","prevResult":7}`, types.ErrInvalidNetworkConfig, "prevResult"},
		"a result with holes":     {`{"cniVersion":"1.0.0","name":"net","type":"leasehold","prevResult":{"cniVersion":"1.0.0","ips":[null]}}`, types.ErrInvalidNetworkConfig, "prevResult"},
		"another's, without IPAM": {`{"cniVersion":"1.0.0","name":"net","type":"bridge","prevResult":{"cniVersion":"1.0.0"}}`, types.ErrInvalidNetworkConfig, "ipam"},
	} {
		t.Run(story, func(t *testing.T) {
			_, _, err := addChained(t, &recorder{}, &links{}, []byte(c.stdin), "")
			if code(t, err) != c.code || !strings.Contains(err.Error(), c.words) {
				t.Errorf("%v; want code %d and %q", err, c.code, c.words)
			}
		})
	}
}
