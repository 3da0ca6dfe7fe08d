package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/install"
)

func (c *cluster) release() *cobra.Command {
	var held, dryRun bool
	var wait time.Duration
	command := &cobra.Command{
		Use:   "release [address | namespace/pod]",
		Short: "Release an address, the addresses of a pod, or those of a namespace",
		Long: `Release addresses that are kept for pods, so that other pods can get them. It shows
them first, and asks. An address that is held is free at once. A pod that runs keeps
its address until it ends, and the next pod of its name gets another one.

It writes spec.release of the IPReservations, which admins of a namespace may; the
agents of the nodes do the rest.`,
		Example: "  kubectl leasehold release db/db-0\n  kubectl leasehold release --namespace=db --held\n" +
			"  kubectl leasehold release --reserve-as=db/registry --held\n" +
			"  kubectl leasehold release --node=node7 --held --dry-run",
		Args: c.Parse,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && c.namespace == "" && c.node == "" && c.ReserveAs == "" {
				return cli.Usage("name an address, a pod, --reserve-as, --namespace or --node")
			}
			chosen, err := c.reservations(cmd.Context(), func(r object) bool {
				return r.Text("status", "id") != "" && (!held || isHeld(r)) // without an id there is no lease yet
			})
			if err != nil {
				return err
			}
			if len(chosen) == 0 {
				return errors.New("there is no such reservation")
			}
			if err := c.printReservations(chosen); err != nil || dryRun {
				return err
			}
			if !c.Ask(cmd, fmt.Sprintf("Release these %d?", len(chosen))) {
				return nil
			}
			return c.releaseAll(cmd.Context(), chosen, wait)
		},
	}
	f := command.Flags()
	c.nodeFlag(command)
	c.OutputFlag(command)
	c.ReserveAsFlag(command)
	c.YesFlag(command)
	f.StringVarP(&c.namespace, "namespace", "n", "", "only pods of this namespace; if empty, of all")
	f.BoolVar(&held, "held", false, "only addresses of pods that are away")
	f.BoolVar(&dryRun, "dry-run", false, "show what would be released, and stop")
	f.DurationVar(&wait, "wait", 30*time.Second, "how long to wait for the agents; 0: not at all")
	return command
}

// releaseAll requests the release of reservations. Then it waits until the agents have released
// those that were held, and returns an error if that takes longer than wait. With wait 0 it does
// not wait. One that cannot be written, such as because its hold has ended meanwhile, keeps no
// other from being released.
func (c *cluster) releaseAll(ctx context.Context, all []object, wait time.Duration) (err error) {
	held, count := map[string]bool{}, 0 // by the lease's id
	for _, r := range all {
		id := r.Text("status", "id")
		if e := c.patch(ctx, namespaceOf(r), reservationKind, nameOf(r), "merge",
			object{"spec": object{"release": id}}); e != nil {
			err = errors.Join(err, e)
			continue
		}
		held[id], count = isHeld(r), count+1
	}
	if wait > 0 {
		if e := install.Retry(ctx, wait, func() error {
			left, err := c.reservations(ctx, func(r object) bool { return isHeld(r) && held[r.Text("status", "id")] })
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("after %s %d of %d are still held, the first for %s/%s on node %s; 'kubectl "+
					"leasehold doctor' says whether its agent works", wait, len(left), count, namespaceOf(left[0]),
					left[0].Text("spec", "podName"), nodeOf(left[0]))
			}
			return err
		}); e != nil {
			return errors.Join(err, e)
		}
	}
	fmt.Fprintf(c.Stderr, "%d released\n", count)
	return err
}
