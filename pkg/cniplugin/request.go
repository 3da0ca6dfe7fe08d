package cniplugin

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// addRequest returns the validated request of an ADD.
func (c *config) addRequest(args *skel.CmdArgs) (ipam.Request, error) {
	req, err := c.request(args)
	if err != nil {
		return req, err
	}
	if req.Retention, err = policy.ParseAnnotations(c.RuntimeConfig.Annotations); err != nil {
		err = fmt.Errorf("%w: %w", errAnnotation, err)
	}
	return req, err
}

// checkRequest returns the validated request of a CHECK. It ignores annotations, because a pod that
// was created before leasehold was installed may have an invalid annotation, and a prevResult that
// cannot be read, as host-local does.
func (c *config) checkRequest(args *skel.CmdArgs) (ipam.Request, error) {
	req, err := c.request(args)
	if result, _ := c.previous(); result != nil {
		for _, ip := range result.IPs {
			req.Prev = append(req.Prev, fromIP(ip.Address.IP))
		}
	}
	return req, err
}

// request returns the part of a request that ADD and CHECK have in common. It returns an error if
// there is no range set.
func (c *config) request(args *skel.CmdArgs) (ipam.Request, error) {
	if len(args.ContainerID) > lease.MaxContainerID {
		return ipam.Request{}, fmt.Errorf("%w: CNI_CONTAINERID %s; want at most %d characters",
			errEnvironment, policy.Quote(args.ContainerID), lease.MaxContainerID)
	}
	ip, pod, noPod, err := parseArgs(args.Args)
	if c.noPod = noPod; err != nil {
		return ipam.Request{}, err
	}
	req := ipam.Request{ContainerID: args.ContainerID, IfName: args.IfName, NetnsPath: args.Netns, Pod: pod,
		Link: c.link()}
	if req.Pool, err = c.pool(); err != nil {
		return req, err
	}
	if req.Sets, err = c.sets(); err != nil {
		return req, err
	}
	if len(req.Sets) == 0 {
		return req, invalid("ipam", "no IP ranges specified; want subnet, or ranges with at least one range set")
	}
	if _, err = c.routes(); err != nil { // host-local refuses them at each of its verbs
		return req, err
	}
	if req.Options, err = c.options(); err != nil {
		return req, err
	}
	req.Requested, err = c.requested(ip)
	return req, err
}

// maxDevice is the largest length of the name of a device in what link returns, more than any has.
const maxDevice = 32

// link returns the type of the plugin that creates the interface, and its device, if pods of other
// nodes may be on the same link: that of a macvlan or ipvlan interface's master, or a bridge that
// is not the pods' gateway, so that a port of it leads out of the node. It returns "" otherwise.
// leasehold does not validate what belongs to the other plugin.
func (c *config) link() string {
	of := c.entry()
	device := func(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxDevice)], "") }
	switch {
	case of.Type == "macvlan", of.Type == "ipvlan":
		return strings.TrimSpace(of.Type + " " + device(of.Master))
	case of.Type == "bridge" && !of.IsGateway && !of.IsDefaultGateway && !of.IPMasq:
		return of.Type + " " + cmp.Or(device(of.Bridge), "cni0")
	}
	return ""
}

// previous returns prevResult, decoded by libcni according to cniVersion. It returns nil if there
// is no prevResult.
func (c *config) previous() (result *current.Result, err error) {
	if isAbsent(c.PrevResult) {
		return nil, nil
	}
	defer func() {
		if r := recover(); r != nil { // a converter of libcni panics if a list contains null
			err = invalid("prevResult", "want a result of CNI version %s: %.100v", policy.Quote(c.CNIVersion), r)
		}
	}()
	conf := types.PluginConf{CNIVersion: c.CNIVersion}
	if err := json.Unmarshal(c.PrevResult, &conf.RawPrevResult); err != nil {
		return nil, invalid("prevResult", "want an object: %w", err)
	}
	if err = version.ParsePrevResult(&conf); err == nil {
		result, err = current.GetResult(conf.PrevResult)
	}
	if err != nil {
		return nil, invalid("prevResult", "%w", err)
	}
	if slices.Contains(result.IPs, nil) || slices.Contains(result.Interfaces, nil) {
		return nil, invalid("prevResult", "ips or interfaces contains null")
	}
	return result, nil
}
