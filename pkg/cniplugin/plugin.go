package cniplugin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/sandbox"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// Service is the use cases behind the verbs: *ipam.Service, or a recording
// twin in tests.
type Service interface {
	Assign(context.Context, ipam.Request) (ipam.Result, error)
	Release(context.Context, ipam.Attachment, ipam.Where) error
	Verify(context.Context, ipam.Request) error
	Collect(context.Context, lease.Pool, []ipam.Attachment) error
	Status(context.Context, lease.Pool) error
	KeepMAC(ctx context.Context, who ipam.Attachment, addrs []netip.Addr, has net.HardwareAddr, fixed bool) (net.HardwareAddr, bool, error)
}

// Links are the interfaces of containers: *sandbox.Host, or a simulated one in
// tests.
type Links interface {
	Link(netns, name string) (sandbox.Link, error)
	SetMAC(netns, name string, mac net.HardwareAddr) error
}

// Plugin answers CNI's verbs. Its methods have the form that skel calls, after
// it has checked the environment, the network's name and the CNI version.
// Every error that they return is a *types.Error with a code of its own, also
// where something panicked.
type Plugin struct {
	Service Service
	Links   Links
	Stdout  io.Writer // the result of ADD, and nothing else
	Stderr  io.Writer // notes for an operator, a line each

	NetnsOverride string // the variable of that name, as the runtime has set it

	Tally func(store.Call) // gets every call once it has its answer; may be nil
}

// Funcs are the verbs as skel takes them.
func (p *Plugin) Funcs() skel.CNIFuncs {
	return skel.CNIFuncs{Add: p.Add, Del: p.Del, Check: p.Check, GC: p.GC, Status: p.Status}
}

// Add gives the container its addresses and prints them.
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
	if err != nil && !result.Again {
		err = errors.Join(err, p.release(ctx, args))
	}
	return err
}

// release ends what the attachment holds. It takes back an answer that its
// caller never read (FACTS 1.18), but not one that repeats an earlier answer:
// that container may be using its addresses.
//
// It needs no configuration, for a DEL may come with another one than its ADD,
// or with a broken one (FACTS 2.12, rule 3); what can be read of it says where
// host-local may know the container.
func (p *Plugin) release(ctx context.Context, args *skel.CmdArgs) error {
	who := ipam.Attachment{ContainerID: args.ContainerID, IfName: args.IfName}
	return p.Service.Release(ctx, who, where(args.StdinData))
}

// NetnsOverride is CNI's variable that allows a container in the plugin's own
// network namespace.
const NetnsOverride = "CNI_NETNS_OVERRIDE"

// checkNetns asks what skel asks after ADD: whether the namespace is the
// plugin's own. Then the result is printed and an address is taken, and a
// failure prints a second answer behind the first (FACTS 1.12). So it is asked
// here, before, and a main tells skel not to.
func (p *Plugin) checkNetns(args *skel.CmdArgs) error {
	if o := p.NetnsOverride; strings.EqualFold(o, "true") || o == "1" {
		return nil
	}
	own, err := ns.CheckNetNS(args.Netns)
	if err != nil {
		return fmt.Errorf("%w: CNI_NETNS %s cannot be compared with the plugin's own: %s", errEnvironment, args.Netns, err.Msg)
	}
	if own {
		return fmt.Errorf("%w: CNI_NETNS %s is the plugin's own network namespace; want the container's", errEnvironment, args.Netns)
	}
	return nil
}

// Del releases what the attachment holds.
func (p *Plugin) Del(args *skel.CmdArgs) error {
	return p.guard(verbDel, func(ctx context.Context) error {
		if c, err := loadConfig(args.StdinData); err == nil && c.isChained() {
			return nil // the IPAM entry's DEL releases
		}
		return p.release(ctx, args)
	})
}

// where reads of a configuration what it can, and is silent about the rest.
func where(stdin []byte) (w ipam.Where) {
	c, err := loadConfig(stdin)
	if err != nil {
		return w
	}
	if w.Pool, err = c.pool(); err != nil {
		return w
	}
	w.Sets, _ = c.sets()
	if options, err := c.options(); err == nil {
		w.Options = &options
	}
	return w
}

// Check verifies that the container holds what prevResult says.
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

// GC releases the pool's attachments that the runtime does not list as valid.
// Without a list it does nothing; an empty one lists none (FACTS 1.14).
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

// Status tells whether an ADD with this configuration could work.
func (p *Plugin) Status(args *skel.CmdArgs) error {
	return p.guard(verbStatus, func(ctx context.Context) error {
		c, err := loadConfig(args.StdinData)
		if err != nil || c.isChained() {
			return err
		}
		pool, err := c.statusPool()
		if err != nil {
			return err
		}
		return p.Service.Status(ctx, pool)
	})
}

// guard translates what a verb returns, and turns a panic into an error: a
// runtime that gets no JSON cannot tell the user anything.
func (p *Plugin) guard(verb string, call func(context.Context) error) (err error) {
	tally := store.Call{Verb: verb}
	began := time.Now()
	ctx := store.Measured(context.Background(), func(t store.Timing) { tally.Waited += t.Waited })
	defer func() {
		if r := recover(); r != nil {
			p.note(fmt.Sprintf("%s panicked: %v\n%s", verb, r, debug.Stack()))
			err = fmt.Errorf("%w: %.200v", errPanic, r)
		}
		if err != nil {
			err = coded(verb, err)
		}
		if p.Tally != nil {
			tally.Result, tally.Took = result(err), time.Since(began)
			p.Tally(tally)
		}
	}()
	return call(ctx)
}

// result is how a call ended, for the tally: "ok", or CNI's code.
func result(err error) string {
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
