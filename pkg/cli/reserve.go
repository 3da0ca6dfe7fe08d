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
	"github.com/leasehold-cni/leasehold/pkg/install"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// choiceFlags adds the flags that choose addresses for a pod, and returns what they will choose.
func choiceFlags(command *cobra.Command) *ipam.Choice {
	c := &ipam.Choice{Window: lease.Forever, IfName: "eth0"}
	f, errName := command.Flags(), errors.New("want namespace/name")
	// With an empty value, which scripts may have, --pod and --reserve-as count as not given.
	f.Func("pod", "the `pod`, as namespace/name; it need not exist", func(s string) error {
		namespace, name, _ := strings.Cut(s, "/")
		if c.Name = name; s == "" {
			return nil
		}
		if c.Namespace = namespace; !hostlocal.IsPod(namespace, name) {
			return errName
		}
		return nil
	})
	f.Func("reserve-as",
		"a reservation `name` (annotation leasehold.dev/reserve-as) instead of a pod, as namespace/name",
		func(s string) error {
			namespace, name, _ := strings.Cut(s, "/")
			if c.Reservation = name; s == "" {
				return nil
			}
			if c.Namespace = namespace; !lease.IsNamespace(namespace) || !lease.IsReservation(name) {
				return errName
			}
			return nil
		})
	f.Func("address", "the `address`; with two address families one of each (may be repeated)", func(s string) error {
		for text := range strings.SplitSeq(s, ",") {
			addr, err := netip.ParseAddr(text)
			if err != nil || addr.Zone() != "" {
				return errors.New("want an IP address")
			}
			c.Addresses = append(c.Addresses, addr.Unmap())
		}
		return nil
	})
	f.Func("for", "how long a pod may take to come: a `duration` such as 24h, or forever (default forever)",
		func(s string) (err error) {
			if c.Window, err = policy.ParseWindow(s); err != nil || c.Window <= 0 {
				return errors.New("want a duration such as 24h, or forever")
			}
			return nil
		})
	f.Func("interface", "the `name` of the pod's interface (default eth0)", func(s string) error {
		if c.IfName = s; !hostlocal.IsIfName(s) {
			return errors.New("want the name of an interface")
		}
		return nil
	})
	command.PreRunE = func(*cobra.Command, []string) error {
		if (c.Name == "") == (c.Reservation == "") {
			return usage("name a pod with --pod, or a reservation name with --reserve-as")
		}
		return nil
	}
	_ = command.MarkFlagRequired("address") // it is a flag of the command
	return c
}

func (a *app) reserve() *cobra.Command {
	var choice *ipam.Choice
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
get, is not held, and the command says why. Whether the namespace exists is not known on
a node: if it does not, the node's agent releases the address within seconds. "kubectl
leasehold reserve" refuses such a namespace.`,
		Example: "  leasectl reserve --pod=db/db-0 --address=10.244.3.20\n" +
			"  leasectl reserve --pod=db/db-0 --address=10.244.3.20 --address=fd00::14 --for=24h\n" +
			"  leasectl reserve --reserve-as=db/registry --address=10.244.3.21",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			runtime := cni.runtime()
			var networks []ipam.Network
			for _, s := range cniconf.Check(cniconf.Load(runtime.ConfDir, runtime.Rules), runtime.BinDirs) {
				if s.State == cniconf.Active && s.Pool != (lease.Pool{}) && len(s.Sets) > 0 {
					networks = append(networks, ipam.Network{Pool: s.Pool, Sets: s.Sets})
				}
			}
			service := a.service()
			if networks, err = service.Networks(cmd.Context(), networks); err != nil {
				return err
			}
			networks = slices.DeleteFunc(networks, func(n ipam.Network) bool {
				return a.network != "" && n.Pool.Network != a.network
			})
			choice.Hold, choice.Rest = choice.Window, choice.Window
			done, err := service.Reserve(cmd.Context(), networks, *choice)
			if err != nil {
				return err
			}
			return a.print(done)
		},
	}
	a.outputFlag(c)
	a.networkFlag(c)
	choice = choiceFlags(c)
	cni.register(c)
	return c
}

const requestKind = "addressrequests.ipam.leasehold.dev"

// reserve returns the command of the kubectl plugin that creates an AddressRequest.
func (c *cluster) reserve() *cobra.Command {
	var choice *ipam.Choice
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
			if _, err := c.kubectl(cmd.Context(), manifest, "create", "-f", "-"); err != nil {
				return err
			}
			return c.awaitRequest(cmd.Context(), choice, name, wait)
		},
	}
	c.outputFlag(command)
	choice = choiceFlags(command)
	f := command.Flags()
	f.StringVar(&c.node, "node", "", "the node, if the ranges of several contain the address")
	f.BoolVar(&whenFree, "when-free", false, "if the address is in use, hold it when it becomes free")
	f.DurationVar(&wait, "wait", 30*time.Second, "how long to wait for the node's agent; 0: not at all")
	return command
}

// isOpen reports whether neither the manager nor an agent has decided on an address yet.
func isOpen(r object) bool {
	isWaiting := slices.Contains([]string{"NodeNotReady", "LimitsUnknown"}, r.Text("reason"))
	return r.Text("state") == "" || r.Text("nodeName") == "" && isWaiting
}

// awaitRequest waits until each address of a new AddressRequest is decided on, and prints what its
// status has of each. It returns an error if one is not held, or, unless wait is 0, not decided on.
func (c *cluster) awaitRequest(ctx context.Context, choice *ipam.Choice, name string,
	wait time.Duration) (err error) {
	rows := []object{}
	if wait > 0 {
		err = install.Retry(ctx, wait, func() error {
			o, err := c.get(ctx, "-n", choice.Namespace, requestKind, name)
			rows = append([]object{}, o.List("status", "addresses")...)
			decided := len(rows)
			for _, r := range rows {
				if isOpen(r) {
					decided--
				}
			}
			if missing := len(choice.Addresses) - decided; err == nil && missing > 0 {
				err = fmt.Errorf("after %s there is no answer about %d of %d addresses; 'kubectl leasehold doctor' "+
					"says whether the manager and the agents work", wait, missing, len(choice.Addresses))
			}
			return err
		})
	}
	isRefused := func(r object) bool { return r.Text("state") != "Held" && r.Text("state") != "Bound" }
	if err == nil && slices.ContainsFunc(rows, isRefused) {
		err = errProblems
	}
	return errors.Join(printRows(c.app, rows, "ADDRESS NODE STATE MESSAGE", func(r object) []string {
		return []string{r.Text("address"), r.Text("nodeName"), r.Text("state"), r.Text("message")}
	}), err)
}
