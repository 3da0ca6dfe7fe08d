package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/pkg/transact"
)

func (a *app) recover() *cobra.Command {
	var flags importFlags
	var accept bool
	c := &cobra.Command{
		Use:   "recover",
		Short: "Rebuild a lost store from the state of this node",
		Long: `Rebuild a store that is missing or damaged. The next call of the plugin does the
same: it moves the damaged file aside and imports the addresses that are in use on
the node. A store of which only records or indexes are damaged is repaired in place.
If no complete source says which addresses are in use, no address is
assigned until --accept-loss confirms that this is safe.

It has to run on the node itself: unless it sees the node's containers, no
address is imported until the next pod starts there.`,
		Example: "  leasectl recover --dry-run\n  leasectl recover\n  leasectl recover --accept-loss",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.recoverStore(cmd, flags, accept) },
	}
	a.networkFlag(c)
	flags.register(c)
	c.Flags().BoolVar(&accept, "accept-loss", false,
		"assign addresses although some may be in use that no source on this node knows")
	return c
}

// recoverStore rebuilds the store if it was lost, and otherwise repairs it in place. accept
// confirms that addresses which are not known to be in use may be assigned.
func (a *app) recoverStore(cmd *cobra.Command, flags importFlags, accept bool) error {
	why, err := a.service().Loss(cmd.Context())
	if err != nil {
		return err
	}
	if why == "" {
		return a.repair(cmd.Context(), flags.dryRun)
	}
	a.step("%s", why)
	if accept && !flags.dryRun {
		if err := a.service().AcceptLoss(cmd.Context()); err != nil {
			return err
		}
		a.step("loss accepted: addresses that are not known to be in use may be assigned")
	}
	pools, err := a.networks(flags.dataDir)
	if err != nil {
		return err
	}
	if len(pools) == 0 && !accept {
		return fmt.Errorf("%s contains no networks; name one with --network", flags.dataDir)
	}
	err = a.adopt(cmd, flags, pools)
	if accept && errors.Is(err, transact.ErrNoHostView) {
		a.say("no address was adopted; the next pod that starts does it: %v", err)
		return nil
	}
	return err
}

// repair repairs the damaged records and the indexes of a store that was not lost. With dryRun it
// only prints what is damaged.
func (a *app) repair(ctx context.Context, dryRun bool) error {
	var found []string
	err := a.view(ctx, func(tx *store.Tx) error {
		found = tx.Check()
		return nil
	})
	if err != nil {
		return err
	}
	for _, text := range found {
		a.step("%s", text)
	}
	switch {
	case len(found) == 0:
		a.step("the store is whole: there is nothing to recover")
	case !dryRun:
		if err := a.service().Node.Repair(ctx); err != nil {
			return err
		}
		a.step("damaged records were replaced by what the node shows, and the indexes built again")
	}
	return nil
}
