package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/install"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
)

const requestKind = "addressrequests.ipam.leasehold.dev"

// reserve returns the command of the kubectl plugin that creates an AddressRequest.
func (c *cluster) reserve() *cobra.Command {
	var choice *maintain.Choice
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
				"reservation": choice.ReserveAs, "interface": choice.IfName, "nodeName": c.node}
			for key, value := range entry {
				if value == "" {
					delete(entry, key)
				}
			}
			name := choice.Name + choice.ReserveAs
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
	c.OutputFlag(command)
	choice = cli.ChoiceFlags(command)
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
func (c *cluster) awaitRequest(ctx context.Context, choice *maintain.Choice, name string,
	wait time.Duration) (err error) {
	rows := []object{}
	if wait > 0 {
		err = install.Retry(ctx, wait, func() error {
			o, err := c.get(ctx, "-n", choice.Namespace, requestKind, name)
			rows = append([]object{}, o.List("status", "addresses")...)
			decided := slices.DeleteFunc(slices.Clone(rows), isOpen)
			if missing := len(choice.Addresses) - len(decided); err == nil && missing > 0 {
				err = fmt.Errorf("after %s there is no answer about %d of %d addresses; 'kubectl leasehold doctor' "+
					"says whether the manager and the agents work", wait, missing, len(choice.Addresses))
			}
			return err
		})
	}
	isRefused := func(r object) bool { return r.Text("state") != "Held" && r.Text("state") != "Bound" }
	if err == nil && slices.ContainsFunc(rows, isRefused) {
		err = cli.ErrProblems
	}
	return errors.Join(cli.PrintRows(c.App, rows, "ADDRESS NODE STATE MESSAGE", func(r object) []string {
		return []string{r.Text("address"), r.Text("nodeName"), r.Text("state"), r.Text("message")}
	}), err)
}
