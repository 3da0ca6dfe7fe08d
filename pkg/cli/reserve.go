package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cniconf"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/kubectl"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

// choiceFlags are the flags that choose addresses for a pod.
type choiceFlags struct {
	pod, reserveAs string
	addresses      []string
	window, ifName string
}

func (f *choiceFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.pod, "pod", "", "the pod, as namespace/name; it need not exist")
	c.Flags().StringVar(&f.reserveAs, "reserve-as", "",
		"a reservation name (annotation leasehold.dev/reserve-as) instead of a pod, as namespace/name")
	c.Flags().StringSliceVar(&f.addresses, "address", nil,
		"the `address`; with two address families one of each (may be repeated)")
	c.Flags().StringVar(&f.window, "for", "forever",
		"how long a pod may take to come: a duration such as 24h, or forever")
	c.Flags().StringVar(&f.ifName, "interface", "eth0", "the `name` of the pod's interface")
}

// choice returns what the flags choose, or an error of usage.
func (f *choiceFlags) choice() (c maintain.Choice, err error) {
	if (f.pod == "") == (f.reserveAs == "") {
		return c, usage("name a pod with --pod or a reservation name with --reserve-as")
	}
	namespace, name, _ := strings.Cut(f.pod+f.reserveAs, "/")
	switch c.Namespace = namespace; {
	case f.pod != "" && !hostlocal.IsPod(namespace, name):
		return c, usage("invalid --pod %q; want namespace/name", f.pod)
	case f.reserveAs != "" && (!lease.IsNamespace(namespace) || !lease.IsReservation(name)):
		return c, usage("invalid --reserve-as %q; want namespace/name", f.reserveAs)
	case f.pod != "":
		c.Name = name
	default:
		c.Reservation = name
	}
	for _, text := range f.addresses {
		addr, err := netip.ParseAddr(text)
		if err != nil || addr.Zone() != "" {
			return c, usage("invalid --address %q; want an IP address", text)
		}
		c.Addresses = append(c.Addresses, addr.Unmap())
	}
	if len(c.Addresses) == 0 {
		return c, usage("name an address with --address")
	}
	if c.IfName = f.ifName; !hostlocal.IsIfName(f.ifName) {
		return c, usage("invalid --interface %q", f.ifName)
	}
	c.Window, err = policy.ParseWindow(f.window)
	if err != nil || c.Window <= 0 {
		return c, usage("invalid --for %q; want a duration such as 24h, or forever", f.window)
	}
	c.Hold, c.Rest = c.Window, c.Window
	return c, nil
}

func (a *app) reserve() *cobra.Command {
	var flags choiceFlags
	var cni cniFlags
	c := &cobra.Command{
		Use:   "reserve",
		Short: "Hold an address of this node for a pod that does not exist yet",
		Long: `Hold an address of this node for a pod, or for the next pod with a reservation name,
before it exists. The pod gets it with its first ADD on this node, and no other pod
does. From then on it is kept like any address of the pod: its window, which the pod's
annotation sets, begins when the pod is deleted. An address that no pod has taken is
free again after --for. "leasectl release" releases it.

An address that is in use, that is held for another pod, or that no pod of this node can
get, is not held, and the command says why.`,
		Example: "  leasectl reserve --pod=db/db-0 --address=10.244.3.20\n" +
			"  leasectl reserve --pod=db/db-0 --address=10.244.3.20 --address=fd00::14 --for=24h\n" +
			"  leasectl reserve --reserve-as=db/registry --address=10.244.3.21",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			choice, err := flags.choice()
			if err != nil {
				return err
			}
			dir, rules, binaries := cni.configuration()
			var networks []maintain.Network
			for _, s := range cniconf.Check(cniconf.Load(dir, rules), binaries) {
				if s.State == cniconf.Active && s.Pool != (lease.Pool{}) && len(s.Sets) > 0 {
					networks = append(networks, maintain.Network{Pool: s.Pool, Sets: s.Sets})
				}
			}
			service := a.service()
			if networks, err = service.Networks(cmd.Context(), networks); err != nil {
				return err
			}
			networks = slices.DeleteFunc(networks, func(n maintain.Network) bool {
				return a.network != "" && n.Pool.Network != a.network
			})
			done, err := service.Reserve(cmd.Context(), networks, choice)
			switch {
			case errors.Is(err, transact.ErrNoHostView):
				return fmt.Errorf("%w; run leasectl on the node itself", err)
			case err != nil:
				return err
			}
			return a.print(done)
		},
	}
	a.outputFlag(c)
	a.networkFlag(c)
	flags.register(c)
	cni.register(c)
	return c
}

const requestKind = "addressrequests.ipam.leasehold.dev"

// reserve returns the command of the kubectl plugin that creates an AddressRequest.
func (c *cluster) reserve() *cobra.Command {
	var flags choiceFlags
	var whenFree bool
	var wait time.Duration
	command := &cobra.Command{
		Use:   "reserve",
		Short: "Hold an address for a pod that does not exist yet",
		Long: `Create an AddressRequest: the node whose ranges contain the address holds it for the
pod, or for the next pod with the reservation name, and the manager leads the pod
there. The object has the name of the pod or the reservation name. As long as it exists,
the address is held whenever the pod does not have it. Deleting it releases a hold that
no pod has had.

The command prints what became of each address. The exit status is 1 if one is not held.
It needs the right to create AddressRequests, which editors of a namespace have, and an
administrator has to allow the namespace to choose addresses (the limit "choose").`,
		Example: "  kubectl leasehold reserve --pod=db/db-0 --address=10.244.3.20\n" +
			"  kubectl leasehold reserve --pod=db/db-0 --address=10.244.3.20 --address=fd00::14 --for=24h\n" +
			"  kubectl leasehold reserve --reserve-as=db/registry --address=10.244.3.21 --node=node3 --when-free",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			choice, err := flags.choice()
			if err != nil {
				return err
			}
			entry := map[string]any{"addresses": choice.Addresses, "podName": choice.Name,
				"reservation": choice.Reservation, "interface": choice.IfName, "nodeName": c.node}
			for key, value := range entry {
				if value == "" {
					delete(entry, key)
				}
			}
			name := choice.Name + choice.Reservation
			manifest, err := json.Marshal(map[string]any{"apiVersion": "ipam.leasehold.dev/v1alpha1",
				"kind": "AddressRequest", "metadata": map[string]any{"namespace": choice.Namespace, "name": name},
				"spec": map[string]any{"for": choice.Window.String(), "wait": whenFree, "entries": []any{entry}}})
			if err != nil {
				return err
			}
			if _, err := c.Run(cmd.Context(), manifest, "create", "-f", "-"); err != nil {
				return err
			}
			rows, err := c.awaitRequest(cmd.Context(), choice.Namespace, name, len(choice.Addresses), wait)
			return errors.Join(err, c.printRequested(rows, len(choice.Addresses), wait))
		},
	}
	c.outputFlag(command)
	flags.register(command)
	f := command.Flags()
	f.StringVar(&c.node, "node", "", "the node, if the ranges of several contain the address")
	f.BoolVar(&whenFree, "when-free", false, "if the address is in use, hold it when it becomes free")
	f.DurationVar(&wait, "wait", 30*time.Second, "how long to wait for the node's agent; 0: not at all")
	return command
}

// awaitRequest waits until n addresses of a new AddressRequest have a state, and returns those that
// have one, as its status has them.
func (c *cluster) awaitRequest(ctx context.Context, namespace, name string, n int,
	wait time.Duration) (rows []kubectl.Object, err error) {
	_, err = poll(ctx, wait, func() (bool, error) {
		o, err := c.Get(ctx, "-n", namespace, requestKind, name)
		rows = slices.DeleteFunc(append([]kubectl.Object{}, o.List("status", "addresses")...),
			func(a kubectl.Object) bool { return a.Text("state") == "" })
		return len(rows) >= n, err
	})
	return rows, err
}

// poll calls f once per second until it reports true, for at most a limit, and reports whether it
// has.
func poll(ctx context.Context, limit time.Duration, f func() (bool, error)) (done bool, err error) {
	for end := time.Now().Add(limit); ; {
		if done, err = f(); done || err != nil || !time.Now().Before(end) {
			return done, err
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// printRequested prints the states of requested addresses, which should be n. It returns an error
// if one is not held, or, unless wait is 0, has no state.
func (c *cluster) printRequested(rows []kubectl.Object, n int, wait time.Duration) error {
	err := printRows(c.app, rows, "ADDRESS NODE STATE MESSAGE", func(r kubectl.Object) []string {
		return []string{r.Text("address"), r.Text("nodeName"), r.Text("state"), r.Text("message")}
	})
	isRefused := func(r kubectl.Object) bool { return r.Text("state") != "Held" && r.Text("state") != "Bound" }
	switch {
	case err != nil:
		return err
	case slices.ContainsFunc(rows, isRefused):
		return errProblems
	case len(rows) < n && wait > 0:
		return fmt.Errorf("after %s %d of %d addresses have no state; 'kubectl leasehold doctor' says whether the "+
			"manager and the agents work", wait, n-len(rows), n)
	}
	return nil
}
