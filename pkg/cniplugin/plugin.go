package cniplugin

import (
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
	"github.com/containernetworking/cni/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/sandbox"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Service is implemented by *ipam.Service. Every method is one transaction of the store.
type Service interface {
	Assign(context.Context, ipam.Request) (ipam.Result, error)
	Release(context.Context, lease.Attachment, ipam.PoolHint) error
	Verify(context.Context, ipam.Request) error
	Collect(context.Context, lease.Pool, []lease.Attachment) error
	Status(context.Context, ipam.PoolHint) error
	KeepMAC(
		ctx context.Context, who lease.Attachment, addrs []netip.Addr, has net.HardwareAddr, fixed bool,
	) (net.HardwareAddr, bool, error)
}

// Links reads and changes the interfaces of containers. It is implemented by *sandbox.Host.
type Links interface {
	Link(netns, name string) (sandbox.Link, error)
	SetMAC(netns, name string, mac net.HardwareAddr) error
}

// Plugin implements CNI's verbs. Its methods are called by skel, which has validated the
// environment, the network's name and the CNI version. Every error that they return is a
// *types.Error with a code of docs/design.md, "CNI error codes"; a panic is returned as such an
// error as well.
type Plugin struct {
	Service Service
	Links   Links
	Stdout  io.Writer // the result of ADD, and nothing else
	Stderr  io.Writer // notes for an operator, one line each

	NetnsOverride string // the value of CNI_NETNS_OVERRIDE

	LogCall func(store.Call) // called with every finished call; may be nil
}

// Funcs returns the verbs in the form that skel takes.
func (p *Plugin) Funcs() skel.CNIFuncs {
	return skel.CNIFuncs{Add: p.Add, Del: p.Del, Check: p.Check, GC: p.GC, Status: p.Status}
}

// Add assigns addresses to the container and prints the result.
func (p *Plugin) Add(args *skel.CmdArgs) error {
	return p.guard(verbAdd, func(ctx context.Context) error { return p.add(ctx, args) })
}

func (p *Plugin) add(ctx context.Context, args *skel.CmdArgs) error {
	c, err := loadConfig(args.StdinData)
	if err != nil {
		return err
	}
	if c.isChained() {
		return p.addChained(ctx, c, args)
	}
	req, err := c.addRequest(args)
	if err != nil {
		return err
	}
	extras, err := c.extras()
	if err != nil {
		return err
	}
	if err := p.checkNetns(args); err != nil {
		return err
	}
	result, err := p.Service.Assign(ctx, req)
	if err != nil {
		return err
	}
	for _, note := range result.Notes {
		p.note(note)
	}
	err = printResult(p.Stdout, c.CNIVersion, result, extras)
	if err != nil && !result.Existing {
		err = errors.Join(err, p.release(ctx, args))
	}
	return err
}

// release releases the addresses of the attachment. add calls it if the result of a first ADD could
// not be printed, because no DEL may follow (docs/facts.md, "A killed plugin leaves its IPAM plugin
// running"); after a repeated ADD it must not be called, because the container may use the
// addresses.
//
// The configuration of a DEL may differ from that of its ADD, or be invalid (docs/facts.md, "DEL
// uses the configuration that is on disk now"). It only serves as a hint where host-local may have
// files of the container.
func (p *Plugin) release(ctx context.Context, args *skel.CmdArgs) error {
	who := lease.Attachment{ContainerID: args.ContainerID, IfName: args.IfName}
	return p.Service.Release(ctx, who, poolHint(args.StdinData))
}

// NetnsOverride is the environment variable of skel that allows a container in the plugin's own
// network namespace.
const NetnsOverride = "CNI_NETNS_OVERRIDE"

// checkNetns returns an error if the container's network namespace is the plugin's own. skel makes
// this check only after ADD has returned. By then an address is assigned and the result was
// printed, so that the error would follow the result (docs/facts.md, "skel can print an error
// behind a result"). The main function therefore disables skel's check.
func (p *Plugin) checkNetns(args *skel.CmdArgs) error {
	if o := p.NetnsOverride; strings.EqualFold(o, "true") || o == "1" {
		return nil
	}
	theirs, err := os.Stat(args.Netns) // does not open it: it may be a FIFO
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

// Del releases the addresses of the attachment.
func (p *Plugin) Del(args *skel.CmdArgs) error {
	return p.guard(verbDel, func(ctx context.Context) error {
		if c, err := loadConfig(args.StdinData); err == nil && c.isChained() {
			return nil // the DEL of the plugin that delegates IPAM releases the addresses
		}
		return p.release(ctx, args)
	})
}

// poolHint returns what is valid in a configuration and ignores errors.
func poolHint(stdin []byte) (hint ipam.PoolHint) {
	c, err := loadConfig(stdin)
	if err != nil {
		return hint
	}
	if hint.Pool, err = c.pool(); err != nil {
		return hint
	}
	hint.Sets, _ = c.sets()
	if options, err := c.options(); err == nil {
		hint.Options = &options
	}
	return hint
}

// Check verifies that the container has the addresses of prevResult.
func (p *Plugin) Check(args *skel.CmdArgs) error {
	return p.guard(verbCheck, func(ctx context.Context) error {
		c, err := loadConfig(args.StdinData)
		if err != nil || c.isChained() {
			return err
		}
		req, err := c.checkRequest(args)
		if err != nil {
			return err
		}
		return p.Service.Verify(ctx, req)
	})
}

// GC releases the pool's attachments that are not in the runtime's list of valid attachments.
// Without a list it does nothing (docs/facts.md, "An absent list is not an empty list").
func (p *Plugin) GC(args *skel.CmdArgs) error {
	return p.guard(verbGC, func(ctx context.Context) error {
		c, err := loadConfig(args.StdinData)
		if err != nil || c.isChained() {
			return err
		}
		valid, listed, err := c.validAttachments()
		if err != nil || !listed {
			return err
		}
		pool, err := c.pool()
		if err != nil {
			return err
		}
		return p.Service.Collect(ctx, pool, valid)
	})
}

// Status returns an error if an ADD with this configuration could not succeed.
func (p *Plugin) Status(args *skel.CmdArgs) error {
	return p.guard(verbStatus, func(ctx context.Context) error {
		c, err := loadConfig(args.StdinData)
		if err != nil || c.isChained() {
			return err
		}
		hint, err := c.statusHint()
		if err != nil {
			return err
		}
		return p.Service.Status(ctx, hint)
	})
}

// guard runs a verb, translates its error, and recovers from a panic: without a JSON error on
// stdout the runtime could not tell the user what happened.
func (p *Plugin) guard(verb string, run func(context.Context) error) (err error) {
	call := store.Call{Verb: verb}
	began := time.Now()
	ctx := store.WithTiming(context.Background(), func(t store.Timing) { call.Waited += t.Waited })
	defer func() {
		if r := recover(); r != nil {
			p.note(fmt.Sprintf("%s panicked: %v\n%s", verb, r, debug.Stack()))
			err = fmt.Errorf("%w: %.200v", errPanic, r)
		}
		if err != nil {
			err = coded(verb, err)
		}
		if p.LogCall != nil {
			call.Result, call.Took = resultLabel(err), time.Since(began)
			p.LogCall(call)
		}
	}()
	return run(ctx)
}

// resultLabel returns the label of a call's result in the metrics: "ok", or CNI's code.
func resultLabel(err error) string {
	var coded *types.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &coded):
		return strconv.FormatUint(uint64(coded.Code), 10)
	}
	return "unknown"
}

func (p *Plugin) note(text string) { fmt.Fprintln(p.Stderr, "leasehold:", text) }
