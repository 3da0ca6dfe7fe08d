package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/adopt"
	"github.com/leasehold-cni/leasehold/pkg/ipam"
)

var defaultCacheDirs = adopt.DefaultCacheDirs

func (a *app) recover() *cobra.Command {
	var w witnesses
	var accept bool
	c := &cobra.Command{
		Use:   "recover",
		Short: "Make a lost store anew from what this node shows",
		Long: `A store that is missing or damaged is moved aside by the next call, and made anew
from what the node shows. This does it now, by hand. Where nothing on the node
tells which addresses are in use, addresses are refused until --accept-loss says
that none that matters is.

From where the node's containers cannot be seen nothing is adopted: the next pod
that starts on the node does it.`,
		Example: "  leasectl recover --dry-run\n  leasectl recover\n  leasectl recover --accept-loss",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			why, err := a.service().Loss(cmd.Context())
			if err != nil {
				return err
			}
			if why == "" {
				fmt.Fprintln(a.Stdout, "the store is not lost: there is nothing to recover")
				return nil
			}
			fmt.Fprintln(a.Stdout, why)
			if accept && !w.dryRun {
				if err := a.service().AcceptLoss(cmd.Context()); err != nil {
					return err
				}
				fmt.Fprintln(a.Stdout, "accepted: addresses that nothing on this node shows may be handed out")
			}
			pools, err := a.networks(w.dataDir)
			if err != nil {
				return err
			}
			err = a.adopt(cmd, w, pools)
			if accept && errors.Is(err, ipam.ErrBlind) {
				fmt.Fprintf(a.Stderr, "leasectl: nothing is adopted now, but by the next pod that starts: %v\n", err)
				return nil
			}
			return err
		},
	}
	w.flags(c)
	c.Flags().BoolVar(&accept, "accept-loss", false, "go on although addresses may be in use that nothing on this node shows")
	return c
}
