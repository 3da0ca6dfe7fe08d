package cniplugin

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// extras contains the parts of a result that come from the configuration and not from the store.
// They are read before an address is assigned, so that an invalid route cannot leak an address.
type extras struct {
	routes []*types.Route
	dns    types.DNS
}

// extras reads ipam.routes and ipam.resolvConf.
func (c *config) extras() (extras, error) {
	if c.sectionErr != nil {
		return extras{}, c.sectionErr
	}
	routes, err := readRoutes(value{"ipam.routes", c.section.Routes})
	if err != nil {
		return extras{}, err
	}
	dns, err := readResolvConf(value{"ipam.resolvConf", c.section.ResolvConf})
	return extras{routes, dns}, err
}

// readRoutes decodes routes as libcni's type, because they are copied to the result unchanged.
func readRoutes(v value) ([]*types.Route, error) {
	elements, err := v.list("a list of routes")
	if err != nil {
		return nil, err
	}
	var routes []*types.Route
	for _, e := range elements {
		var r *types.Route
		if err := e.decode(&r, `an object such as {"dst": "0.0.0.0/0"}`); err != nil {
			return nil, err
		}
		if r == nil || r.Dst.IP == nil { // the runtime could not decode a result with such a route
			return nil, e.errorf(`dst is missing; want an object such as {"dst": "0.0.0.0/0"}`)
		}
		routes = append(routes, r)
	}
	return routes, nil
}

// maxResolvConf is the largest number of bytes of a resolv.conf that are read.
const maxResolvConf = 1 << 20

// readResolvConf reads the file whose path is v, the value of ipam.resolvConf, in the format of
// resolv.conf(5). The file must be a regular one, and only its first maxResolvConf bytes are read.
// readResolvConf returns the zero DNS if no file is configured.
func readResolvConf(v value) (types.DNS, error) {
	path, err := v.text()
	if err != nil || path == "" {
		return types.DNS{}, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // O_NONBLOCK: opening a FIFO would block
	if err != nil {
		return types.DNS{}, v.errorf("%w; want a readable file", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		return types.DNS{}, v.errorf("%s: %w; want a regular file", policy.Quote(path), err)
	}
	dns, err := parseResolvConf(io.LimitReader(f, maxResolvConf))
	if err != nil {
		return types.DNS{}, v.errorf("%s: %w", policy.Quote(path), err)
	}
	return dns, nil
}

// parseResolvConf parses the keywords nameserver, domain, search and options, for which a CNI
// result has fields. It ignores other lines.
func parseResolvConf(r io.Reader) (types.DNS, error) {
	var dns types.DNS
	lines := bufio.NewScanner(r)
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

// printResult prints the result of an ADD in the format of the given CNI version.
func printResult(w io.Writer, cniVersion string, result ipam.Result, with extras) error {
	full := &current.Result{CNIVersion: current.ImplementedSpecVersion, Routes: with.routes, DNS: with.dns}
	for _, a := range result.Addresses {
		full.IPs = append(full.IPs, &current.IPConfig{Address: toIPNet(a.Address), Gateway: toIP(a.Gateway)})
	}
	return printAs(w, cniVersion, full)
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

func toIPNet(p netip.Prefix) net.IPNet {
	return net.IPNet{IP: toIP(p.Addr()), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func toIP(a netip.Addr) net.IP { return a.AsSlice() }
