package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/hostlocal"
	"github.com/leasehold-cni/leasehold/pkg/importer"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/operation"
	"github.com/leasehold-cni/leasehold/pkg/policy"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

// recoverFlags are the flags of recover.
type recoverFlags struct {
	dataDir        string
	cacheDirs      []string
	dryRun, accept bool
}

func (a *app) recover() *cobra.Command {
	var flags recoverFlags
	c := &cobra.Command{
		Use:   "recover",
		Short: "Import what this node shows into the store, which may be lost or damaged",
		Long: `Create leases for addresses that are not in the store: those in living network
namespaces, in libcni's result cache, in host-local's files, and in the reservations
of the Kruise fork. The first call of the plugin for a network does the same; --dry-run
shows it in advance. A store that is lost or damaged is built again. If only records or
indexes are damaged, they are repaired in place, and that is all.

If no complete source says which addresses were in a lost store, no address is
assigned until --accept-loss confirms that this is safe.

It has to run on the node itself: unless it sees the node's containers, no
address is imported until the next pod starts there.`,
		Example: "  leasectl recover --dry-run\n  leasectl recover --network cbr0\n  leasectl recover --accept-loss",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return a.recoverStore(cmd.Context(), flags) },
	}
	a.OutputFlag(c)
	a.networkFlag(c)
	f := c.Flags()
	f.StringVar(&flags.dataDir, "data-dir", policy.DefaultDataDir,
		"host-local's dataDir, with a directory for each network")
	f.StringSliceVar(&flags.cacheDirs, "cni-cache-dir", nil,
		"directory of libcni's result cache, in addition to the default ones (may be repeated)")
	f.BoolVar(&flags.dryRun, "dry-run", false, "print what would be imported, and why, without doing it")
	f.BoolVar(&flags.accept, "accept-loss", false,
		"assign addresses although some may be in use that no source on this node knows")
	return c
}

func (a *app) recoverStore(ctx context.Context, flags recoverFlags) error {
	why, err := a.service().Loss(ctx)
	switch {
	case err != nil:
		return err
	case why == "":
		if damaged, err := a.repair(ctx, flags.dryRun); damaged || err != nil {
			return err
		}
	default:
		a.Say("%s", why)
		if flags.accept && !flags.dryRun {
			if err := a.service().AcceptLoss(ctx); err != nil {
				return err
			}
			a.Say("loss accepted: addresses that are not known to be in use may be assigned")
		}
	}
	pools, err := a.networks(flags.dataDir)
	if err == nil && len(pools) == 0 && !flags.accept {
		err = fmt.Errorf("%s contains no networks; name one with --network", flags.dataDir)
	}
	if err == nil {
		err = a.importPools(ctx, flags, pools)
	}
	if flags.accept && errors.Is(err, operation.ErrNoHostView) {
		a.Say("no address was imported; the next pod that starts does it: %v", err)
		return nil
	}
	return err
}

// repair repairs the damaged records and the indexes of a store that was not lost, and reports
// whether there are any. With dryRun it only prints what is damaged.
func (a *app) repair(ctx context.Context, dryRun bool) (damaged bool, err error) {
	var found []string
	err = a.store().View(ctx, func(tx *store.Tx) error {
		found = tx.Check()
		return nil
	})
	for _, text := range found {
		a.Say("%s", text)
	}
	if err != nil || len(found) == 0 || dryRun {
		return len(found) > 0, err
	}
	if err := a.service().Node.Repair(ctx); err != nil {
		return true, err
	}
	a.Say("damaged records were replaced by what the node shows, and the indexes built again")
	return true, nil
}

// networks returns the pools of a dataDir: only that of the flag --network, if it is set, otherwise
// one for each directory in dataDir that a network may have. "reserved" has the reservations of the
// Kruise fork, and "reserved.converted" those that were imported.
func (a *app) networks(dataDir string) ([]lease.Pool, error) {
	dataDir, err := filepath.Abs(dataDir)
	if err != nil {
		return nil, err
	}
	dataDir = files.Canonical(dataDir)
	if a.network != "" {
		if !hostlocal.IsNetwork(a.network) {
			return nil, cli.Usage("no network can have the name %q", a.network)
		}
		return []lease.Pool{{DataDir: dataDir, Network: a.network}}, nil
	}
	names, err := files.List(dataDir)
	var out []lease.Pool
	for _, name := range names {
		p := lease.Pool{DataDir: dataDir, Network: name}
		if name != "reserved" && name != "reserved.converted" && hostlocal.IsNetwork(name) && hostlocal.Exists(p) {
			out = append(out, p)
		}
	}
	return out, err
}

func (a *app) importPools(ctx context.Context, flags recoverFlags, pools []lease.Pool) error {
	svc := a.service()
	if svc.Node.CacheDirs = flags.cacheDirs; len(flags.cacheDirs) > 0 {
		svc.Node.CacheDirs = append(svc.Node.CacheDirs, importer.DefaultCacheDirs...)
	}
	all, previewed, now := []cli.Imported{}, []cli.Candidate{}, a.Clock()
	for _, p := range pools {
		if flags.dryRun {
			found, problems, err := svc.Preview(ctx, p)
			for _, text := range problems {
				a.Say("%s", text)
			}
			if err != nil {
				return err
			}
			for _, f := range found {
				previewed = append(previewed, cli.Candidate{Row: rowOf(f.Lease, now), Why: f.Why})
			}
			continue
		}
		before, after, err := svc.Import(ctx, p)
		if err != nil {
			return err
		}
		all = append(all, cli.Imported{Network: p.Network, Before: before, After: after})
	}
	if flags.dryRun {
		const heads = "NETWORK ADDRESS POD STATE UNTIL CONTAINER WHY"
		return cli.PrintRows(a.App, previewed, heads, func(c cli.Candidate) []string {
			return []string{c.Network, c.Address, podOf(c.Row), stateOf(c.Row), text(c.Until), short(c.Container),
				c.Why}
		})
	}
	return cli.PrintRows(a.App, all, "NETWORK BEFORE AFTER", func(n cli.Imported) []string {
		return []string{n.Network, strconv.Itoa(n.Before), strconv.Itoa(n.After)}
	})
}
