package cniplugin

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
)

// newResult returns a result without addresses: with what ipam.routes and ipam.resolvConf add. They
// are read before an address is assigned, so that an invalid route cannot leak an address.
func (c *config) newResult() (*current.Result, error) {
	routes, err := c.routes()
	if err != nil {
		return nil, err
	}
	for i, r := range routes {
		if r == nil || r.Dst.IP == nil { // the runtime could not decode a result with such a route
			return nil, invalid(fmt.Sprintf("ipam.routes[%d]", i),
				`dst is missing; want an object such as {"dst": "0.0.0.0/0"}`)
		}
	}
	dns, err := readResolvConf(c.ipam().ResolvConf)
	if err != nil {
		return nil, invalid("ipam.resolvConf", "%w", err)
	}
	return &current.Result{CNIVersion: current.ImplementedSpecVersion, Routes: routes, DNS: dns}, nil
}

// routes decodes ipam.routes as libcni's type, because they are copied to the result unchanged.
func (c *config) routes() (routes []*types.Route, err error) {
	if isAbsent(c.ipam().Routes) {
		return nil, nil
	}
	if err := json.Unmarshal(c.ipam().Routes, &routes); err != nil {
		return nil, invalid("ipam.routes", `%w; want a list of objects such as {"dst": "0.0.0.0/0"}`, err)
	}
	return routes, nil
}

// readResolvConf reads the keywords nameserver, domain, search and options, for which a CNI result
// has fields, of a file in the format of resolv.conf(5). It returns the zero DNS if path is "".
// /dev/null has none either. Other files that are not regular may never end.
func readResolvConf(path string) (dns types.DNS, err error) {
	if path == "" || path == os.DevNull {
		return dns, nil
	}
	content, _, err := files.ReadLinked(path)
	if err != nil {
		return dns, err
	}
	lines := bufio.NewScanner(bytes.NewReader(content)) // as host-local, with its limit for a line
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, words[1])
		case "domain":
			dns.Domain = words[1]
		case "search":
			dns.Search = append(dns.Search, words[1:]...)
		case "options":
			dns.Options = append(dns.Options, words[1:]...)
		}
	}
	return dns, lines.Err()
}

// printAs prints a result in the format of the given CNI version. It returns errPrint if it fails.
func printAs(w io.Writer, cniVersion string, result *current.Result) error {
	out, err := result.GetAsVersion(cniVersion)
	if err == nil {
		err = out.PrintTo(w)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errPrint, err)
	}
	return nil
}

// toIPs returns the addresses of an ADD as libcni has them.
func toIPs(addresses []ipam.Assigned) (out []*current.IPConfig) {
	for _, a := range addresses {
		ip := a.Address.Addr()
		out = append(out, &current.IPConfig{Gateway: a.Gateway.AsSlice(),
			Address: net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(a.Address.Bits(), ip.BitLen())}})
	}
	return out
}
