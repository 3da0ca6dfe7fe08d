package cniplugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// links simulates the interface of a container.
type links struct {
	link    host.Link
	linkErr error
	setErr  error
	set     []string // the calls of SetMAC
}

func (l *links) Link(netns, name string) (host.Link, error) {
	if netns != "/run/netns/none" || name != "eth0" {
		return host.Link{}, errors.New("no interface " + name + " in " + netns)
	}
	return l.link, l.linkErr
}

func (l *links) SetMAC(netns, name string, mac net.HardwareAddr) error {
	l.set = append(l.set, netns+" "+name+" "+mac.String())
	return l.setErr
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
	return []byte(`{"cniVersion":"` + version + `","name":"net","type":"leasehold",` + more + `
		"prevResult":{"cniVersion":"` + version + `",
		"interfaces":[{"name":"br0","mac":"02:00:00:00:00:99"},
			{"name":"eth0","mac":"` + own + `","sandbox":"/run/netns/none"},
			{"name":"eth0","mac":"02:00:00:00:00:98"},
			{"name":"net1","mac":"02:00:00:00:00:97","sandbox":"/run/netns/none"}],
		"ips":[{"version":"4","address":"10.0.0.2/24","gateway":"10.0.0.1","interface":1},
			{"version":"6","address":"fd00::2/64","interface":1},
			{"version":"4","address":"10.9.9.9/24","interface":0}],
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
	must.Succeed(t, json.Unmarshal([]byte(result), &r), result)
	check.Equal(t, len(r.IPs), 3, result)
	check.Equal(t, len(r.DNS.Nameservers), 1, result)
	var out []string
	for _, i := range r.Interfaces {
		out = append(out, strings.TrimPrefix(i.Mac, "02:00:00:00:00:"))
	}
	return strings.Join(out, " ")
}

func TestChainedKeepsTheMAC(t *testing.T) {
	for _, version := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		r, l := &recorder{keeps: hw(former)}, &links{link: host.Link{Kind: "veth", MAC: hw(own)}}
		out, notes, err := addChained(t, r, l, chained(version, ""), "K8S_POD_NAME=x")
		must.Succeed(t, err, version)
		check.Equal(t, notes, "", version)
		check.Equal(t, macsOf(t, out), "99 02 98 97", version, "only the MAC of the container's interface changes")
		check.Contains(t, out, fmt.Sprintf("%q", version), "result of version", version)
		check.Equal(t, fmt.Sprint(l.set), "[/run/netns/none eth0 "+former+"]", "the call of SetMAC")
		check.Equal(t, fmt.Sprint(r.addrs, r.has, r.fixed, r.who), "[10.0.0.2 fd00::2] "+own+" [false] {c1 eth0}",
			"the call of KeepMAC")
	}
}

// TestChainedKeepsPrevResult verifies that ADD prints prevResult unchanged if the MAC must not or
// cannot be set.
func TestChainedKeepsPrevResult(t *testing.T) {
	for name, c := range map[string]struct {
		keeps   string
		link    host.Link
		linkErr error
		err     error
		more    string
		args    string
		calls   int
		noted   bool
	}{
		"the first sandbox of a pod":     {keeps: own, link: host.Link{Kind: "veth", MAC: hw(own)}, calls: 1},
		"the lease of another container": {link: host.Link{Kind: "veth", MAC: hw(own)}, calls: 1},
		"an ipvlan":                      {keeps: former, link: host.Link{Kind: "ipvlan", MAC: hw(own)}},
		"a device":                       {keeps: former, link: host.Link{MAC: hw(own)}},
		"an interface without a MAC":     {keeps: former, link: host.Link{Kind: "veth"}},
		"a MAC requested in CNI_ARGS": {keeps: former, link: host.Link{Kind: "veth", MAC: hw(own)},
			args: "IgnoreUnknown=1;MAC=" + own, calls: 1},
		"a MAC requested by the runtime": {keeps: former, link: host.Link{Kind: "macvlan", MAC: hw(own)},
			more: `"runtimeConfig":{"mac":"` + own + `"},`, calls: 1},
		"no interface": {keeps: former, linkErr: host.ErrNoLink, noted: true},
		"a busy store": {link: host.Link{Kind: "veth", MAC: hw(own)}, err: errors.New("busy"),
			calls: 1, noted: true},
		"a busy store, after the MAC was read": {keeps: former, link: host.Link{Kind: "veth", MAC: hw(own)},
			err: errors.New("busy"), calls: 1, noted: true},
	} {
		t.Run(name, func(t *testing.T) {
			r, l := &recorder{err: c.err}, &links{link: c.link, linkErr: c.linkErr}
			if c.keeps != "" {
				r.keeps = hw(c.keeps)
			}
			out, notes, err := addChained(t, r, l, chained("1.0.0", c.more), c.args)
			must.Succeed(t, err)
			if got := macsOf(t, out); got != "99 01 98 97" || l.set != nil {
				t.Errorf("the result has the MACs %s, SetMAC was called with %q", got, l.set)
			}
			check.Equal(t, len(r.calls), c.calls, r.calls)
			check.Equal(t, notes != "", c.noted, notes)
		})
	}
}

// TestChainedRecordsTheMACThatStays verifies that the lease gets the MAC that the interface has if
// the lease's own cannot be set.
func TestChainedRecordsTheMACThatStays(t *testing.T) {
	r := &recorder{keeps: hw(former)}
	l := &links{link: host.Link{Kind: "macvlan", MAC: hw(own)}, setErr: errors.New("address in use")}
	out, notes, err := addChained(t, r, l, chained("1.0.0", ""), "")
	must.Succeed(t, err)
	if got := macsOf(t, out); got != "99 01 98 97" || !strings.Contains(notes, "address in use") {
		t.Errorf("the result has the MACs %s, notes %q", got, notes)
	}
	check.Equal(t, fmt.Sprint(r.fixed, r.has), "[false true] "+own, "the calls of KeepMAC")
}

// TestChainedInThePluginsOwnNetns: the MAC address of an interface of the node is never changed.
func TestChainedInThePluginsOwnNetns(t *testing.T) {
	r, l := &recorder{keeps: hw(former)}, &links{link: host.Link{Kind: "veth", MAC: hw(own)}}
	p, stdout, _ := plugin(r)
	p.Links = l
	args := addArgs(chained("1.0.0", ""), "")
	args.Netns = "/proc/self/ns/net"
	err := p.Add(args)
	check.Equal(t, code(t, err), types.ErrInvalidEnvironmentVariables)
	check.Error(t, err, "is the plugin's own network namespace")
	if len(l.set) > 0 || len(r.calls) > 0 || stdout.Len() > 0 {
		t.Errorf("SetMAC was called with %q, the service with %q; printed %q", l.set, r.calls, stdout)
	}
}
