package cniplugin

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// maxContainerID bounds what becomes part of a file's name in the spool. The
// ids of runtimes have 64 characters at most.
const maxContainerID = 128

// addRequest is everything that ADD needs, checked.
func (c *config) addRequest(args *skel.CmdArgs) (ipam.Request, error) {
	req, err := c.request(args)
	if err != nil {
		return req, err
	}
	req.Asked, err = c.asked()
	return req, err
}

// checkRequest is everything that CHECK needs. Annotations are not: a pod that
// was made before this plugin was installed may have any.
func (c *config) checkRequest(args *skel.CmdArgs) (ipam.Request, error) {
	req, err := c.request(args)
	if err != nil {
		return req, err
	}
	req.Prev, req.PrevKnown, err = c.prevAddresses()
	return req, err
}

// request is what ADD and CHECK have in common.
func (c *config) request(args *skel.CmdArgs) (ipam.Request, error) {
	if len(args.ContainerID) > maxContainerID {
		return ipam.Request{}, fmt.Errorf("%w: CNI_CONTAINERID %s; want at most %d characters", errEnvironment, policy.Quote(args.ContainerID), maxContainerID)
	}
	env, err := parseArgs(args.Args)
	if err != nil {
		return ipam.Request{}, err
	}
	req := ipam.Request{ContainerID: args.ContainerID, IfName: args.IfName, NetnsPath: args.Netns, Pod: env.pod}
	if req.Pool, err = c.pool(); err != nil {
		return req, err
	}
	if req.Sets, err = c.sets(); err != nil {
		return req, err
	}
	if len(req.Sets) == 0 {
		return req, c.ipam.errorf("no IP ranges specified; want a subnet, or ranges with range sets in it")
	}
	if req.Options, err = c.options(); err != nil {
		return req, err
	}
	if req.Requested, err = c.requested(env.ip); err != nil {
		return req, err
	}
	return req, checkRequested(req.Requested, req.Sets)
}

// statusPool reads all that STATUS can see of the configuration. Ranges may
// come with each ADD instead (runtimeConfig.ipRanges), so none is no fault.
func (c *config) statusPool() (lease.Pool, error) {
	if _, err := c.sets(); err != nil {
		return lease.Pool{}, err
	}
	if _, err := c.options(); err != nil {
		return lease.Pool{}, err
	}
	return c.pool()
}

// prevAddresses are the addresses of prevResult.
func (c *config) prevAddresses() (addresses []netip.Addr, known bool, err error) {
	result, err := c.previous()
	if result == nil || err != nil {
		return nil, false, err
	}
	for _, ip := range result.IPs {
		addresses = append(addresses, fromIP(ip.Address.IP))
	}
	return addresses, true, nil
}

// previous is prevResult, which the CNI library reads in the version of the
// configuration; nil where there is none.
func (c *config) previous() (result *current.Result, err error) {
	if c.prevResult.absent() {
		return nil, nil
	}
	defer func() {
		if r := recover(); r != nil { // the library's converters do so over a null in a list
			err = c.prevResult.errorf("want a result of CNI version %s: %.100v", policy.Quote(c.CNIVersion), r)
		}
	}()
	conf := types.PluginConf{CNIVersion: c.CNIVersion}
	if err := json.Unmarshal(c.prevResult.raw, &conf.RawPrevResult); err != nil {
		return nil, c.prevResult.errorf("want an object: %w", err)
	}
	if err := version.ParsePrevResult(&conf); err != nil {
		return nil, c.prevResult.errorf("%w", err)
	}
	if result, err = current.GetResult(conf.PrevResult); err != nil {
		return nil, c.prevResult.errorf("%w", err)
	}
	if slices.Contains(result.IPs, nil) || slices.Contains(result.Interfaces, nil) {
		return nil, c.prevResult.errorf("want no null in a list")
	}
	return result, nil
}
