package cniplugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/leasehold-cni/leasehold/pkg/host"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/rundir"
)

// Service assigns and releases addresses. It is implemented by *ipam.Service. Each method is one
// transaction of the store.
type Service interface {
	Assign(context.Context, ipam.Request) (ipam.Result, error)
	Release(context.Context, lease.Attachment, operation.Scope) error
	Verify(context.Context, ipam.Request) error
	Collect(context.Context, operation.Scope, []lease.Attachment) error
	Status(context.Context, operation.Scope) error
	KeepMAC(
		ctx context.Context, who lease.Attachment, addrs []netip.Addr, has net.HardwareAddr, fixed bool,
	) (net.HardwareAddr, bool, error)
}

// Links reads and changes the interfaces of containers. It is implemented by *host.Host.
type Links interface {
	Link(netns, name string) (host.Link, error)
	SetMAC(netns, name string, mac net.HardwareAddr) error
}

// Plugin implements the CNI verbs. skel calls the methods after it has validated the environment,
// the name of the network and the CNI version. Every error that a method returns is a *types.Error
// with a code from docs/reference.md, "CNI error codes". A panic becomes such an error, too.
type Plugin struct {
	Service Service
	Links   Links
	Stdout  io.Writer // receives the result of ADD, and nothing else
	Stderr  io.Writer // receives notes for an operator, one line each

	NetnsOverride string // the value of CNI_NETNS_OVERRIDE

	LogCall func(rundir.Call) // called after every verb with its result and duration; may be nil

	warnings []string      // not yet printed
	waited   time.Duration // for the store's lock, in the present verb
}

// Funcs returns the verbs as skel expects them.
func (p *Plugin) Funcs() skel.CNIFuncs {
	return skel.CNIFuncs{Add: p.Add, Del: p.Del, Check: p.Check, GC: p.GC, Status: p.Status}
}

// Add assigns addresses to the container and prints the result. As a chained plugin (see
// config.isChained) it assigns nothing, but restores the MAC address of the container's interface.
//
// It validates the whole configuration before it assigns addresses, so that an invalid
// configuration cannot leak an address.
func (p *Plugin) Add(args *skel.CmdArgs) (err error) {
	defer p.end(verbAdd, time.Now(), &err)
	ctx := context.Background()
	c, err := loadConfig(args.StdinData)
	if err != nil {
		return err
	}
	if c.isChained() {
		return p.addChained(ctx, c, args)
	}
	req, err := c.addRequest(args)
	if c.noPod != nil {
		p.note(fmt.Sprintf("no address is kept for container %s: %v", args.ContainerID, c.noPod))
	}
	if err != nil {
		return err
	}
	result, err := c.newResult()
	if err != nil {
		return err
	}
	if err := p.checkNetns(args); err != nil {
		return err
	}
	assigned, err := p.Service.Assign(ctx, req)
	if err != nil {
		return err
	}
	for _, note := range assigned.Notes {
		p.note(note)
	}
	result.IPs = toIPs(assigned.Addresses)
	// If the result cannot be printed, the runtime does not know the addresses.
	err = printAs(p.Stdout, c.CNIVersion, result)
	if err != nil && !assigned.Existing {
		err = errors.Join(err, p.release(ctx, args, c))
	}
	return err
}

// release releases the addresses of the container's interface. Del calls it, and add calls it if
// the result of a first ADD could not be printed, because a DEL might not follow (docs/facts.md, "A
// killed plugin leaves its IPAM plugin running"). After a repeated ADD it must not be called,
// because the container may already use the addresses.
//
// The configuration of a DEL may differ from that of the ADD, or be invalid (docs/facts.md, "DEL
// uses the configuration that is on disk now"). release therefore uses the configuration, which is
// empty if it is invalid, only as a hint that shows where host-local may have files of the
// container.
func (p *Plugin) release(ctx context.Context, args *skel.CmdArgs, c *config) error {
	in, _ := c.scope()
	return p.Service.Release(ctx, lease.Attachment{ContainerID: args.ContainerID, IfName: args.IfName}, in)
}

// NetnsOverride is the environment variable with which skel allows a container to have the same
// network namespace as the plugin.
const NetnsOverride = "CNI_NETNS_OVERRIDE"

// checkNetns returns an error if the container has the same network namespace as the plugin, unless
// p.NetnsOverride allows it. skel makes this check only after ADD has returned. At that time an
// address is assigned and the result is printed, so that skel's error would follow the result on
// stdout (docs/facts.md, "skel can print an error behind a result"). The main function therefore
// disables the check of skel.
func (p *Plugin) checkNetns(args *skel.CmdArgs) error {
	if o := p.NetnsOverride; strings.EqualFold(o, "true") || o == "1" {
		return nil
	}
	theirs, err := os.Stat(args.Netns) // Stat, because opening a FIFO would block
	if err != nil {
		return nil // Service.Assign returns an error about it
	}
	own, err := os.Stat("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("%w: comparing CNI_NETNS %s with the plugin's network namespace failed: %w",
			errEnvironment, args.Netns, err)
	}
	if os.SameFile(own, theirs) {
		return fmt.Errorf("%w: CNI_NETNS %s is the plugin's own network namespace; want the container's",
			errEnvironment, args.Netns)
	}
	return nil
}

// Del releases the addresses of the container's interface. As a chained plugin it does nothing.
func (p *Plugin) Del(args *skel.CmdArgs) (err error) {
	defer p.end(verbDel, time.Now(), &err)
	c, _ := loadConfig(args.StdinData)
	if c.isChained() {
		return nil // leasehold's DEL as an IPAM plugin releases the addresses
	}
	return p.release(context.Background(), args, c)
}

// scope returns the pool, the range sets and the policies of a configuration, or an error if the
// pool is invalid. Sets and policies that are invalid have their zero value or the default.
func (c *config) scope() (operation.Scope, error) {
	p, err := c.pool()
	if err != nil {
		return operation.Scope{}, err
	}
	sets, _ := c.sets()
	in := operation.Existing(p, sets)
	if options, err := c.options(); err == nil {
		in.CoolDown, in.Caches = options.CoolDown, options.CNICacheDirs
	}
	return in, nil
}

// Check verifies that the container has the addresses of prevResult. As a chained plugin it
// verifies only that the configuration can be decoded.
func (p *Plugin) Check(args *skel.CmdArgs) error {
	return p.unlessChained(verbCheck, args, func(c *config) error {
		req, err := c.checkRequest(args)
		if err != nil {
			return err
		}
		return p.Service.Verify(context.Background(), req)
	})
}

// unlessChained runs a verb that does nothing in a chained plugin but decode its configuration.
func (p *Plugin) unlessChained(verb string, args *skel.CmdArgs, run func(*config) error) (err error) {
	defer p.end(verb, time.Now(), &err)
	c, err := loadConfig(args.StdinData)
	if err != nil || c.isChained() {
		return err
	}
	return run(c)
}

// GC releases the addresses of the pool's attachments that are not in the runtime's list of valid
// attachments. If the configuration has no such list, GC does nothing (docs/facts.md, "An absent
// list is not an empty list").
func (p *Plugin) GC(args *skel.CmdArgs) error {
	return p.unlessChained(verbGC, args, func(c *config) error {
		valid, listed, err := c.validAttachments()
		if err != nil || !listed {
			return err
		}
		in, err := c.scope()
		if err != nil {
			return err
		}
		return p.Service.Collect(context.Background(), in, valid)
	})
}

// Status returns an error if an ADD with this configuration could not succeed.
func (p *Plugin) Status(args *skel.CmdArgs) error {
	return p.unlessChained(verbStatus, args, func(c *config) error {
		// There may be no ranges: the runtime may pass them with each ADD (runtimeConfig.ipRanges).
		_, errSets := c.sets()
		_, errOptions := c.options()
		_, errRequested := c.requested(netip.Addr{})
		_, errResult := c.newResult()
		in, errPool := c.scope()
		if err := cmp.Or(errSets, errOptions, errPool, errRequested, errResult); err != nil {
			return err
		}
		return p.Service.Status(context.Background(), in)
	})
}

// Warn has a note printed when the verb ends. The caller may hold locks that other calls of the
// node wait for, and a reader of stderr may be slow.
func (p *Plugin) Warn(text string) { p.warnings = append(p.warnings, text) }

// Timed adds a transaction of the present verb to what LogCall gets (store.Store.Timed).
func (p *Plugin) Timed(waited time.Duration) { p.waited += waited }

// end ends a verb, which is deferred: began is when it began, result what it returns. It prints the
// warnings, translates the verb's error to a *types.Error, and calls p.LogCall. It also recovers
// from a panic, because without a JSON error on stdout the runtime could not tell the user what
// happened.
func (p *Plugin) end(verb string, began time.Time, result *error) {
	r := recover()
	for _, w := range p.warnings {
		p.note(w)
	}
	p.warnings = nil
	err := *result
	if r != nil {
		p.note(fmt.Sprintf("%s panicked: %v\n%s", verb, r, debug.Stack()))
		err = fmt.Errorf("%w: %.200v", errPanic, r)
	}
	call := rundir.Call{Verb: verb, Result: "ok", Took: time.Since(began), Waited: p.waited}
	p.waited, *result = 0, nil
	if err != nil {
		c := coded(verb, err)
		*result, call.Result = c, strconv.FormatUint(uint64(c.Code), 10)
	}
	if p.LogCall != nil {
		p.LogCall(call)
	}
}

// note prints a note for an operator on stderr.
func (p *Plugin) note(text string) { fmt.Fprintln(p.Stderr, "leasehold:", text) }
