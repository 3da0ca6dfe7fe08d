package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// witnesses are where the commands look that learn from the host.
type witnesses struct {
	dataDir   string
	cacheDirs []string
	dryRun    bool
}

func (w *witnesses) flags(c *cobra.Command) {
	c.Flags().StringVar(&w.dataDir, "data-dir", "/var/lib/cni/networks", "host-local's dataDir, with a directory for each network")
	c.Flags().StringSliceVar(&w.cacheDirs, "cni-cache-dir", nil, "directory of libcni's results, beside the usual ones (may be repeated)")
	c.Flags().BoolVar(&w.dryRun, "dry-run", false, "only print what would be adopted, and why")
}

func (a *app) importCmd() *cobra.Command {
	var w witnesses
	c := &cobra.Command{
		Use:   "import",
		Short: "Adopt the addresses that this node shows to be in use or promised",
		Long: `Look for addresses that the store does not know: in living network namespaces, in
libcni's result cache, in host-local's files and in the reservations of the
Kruise fork; and make leases of them. Every first call for a network does the
same by itself; this is to see it before, or to repeat it.`,
		Example: "  leasectl import --dry-run\n  leasectl import --network cbr0",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pools, err := a.networks(w.dataDir)
			if err != nil {
				return err
			}
			if len(pools) == 0 {
				fmt.Fprintf(a.Stderr, "leasectl: %s has no network; --network names one\n", w.dataDir)
				return errProblems
			}
			return a.adopt(cmd, w, pools)
		},
	}
	w.flags(c)
	return c
}

// networks are the pools below a dataDir: the one of --network, or every
// directory. The Kruise fork keeps its reservations beside them.
func (a *app) networks(dataDir string) ([]lease.Pool, error) {
	dataDir, err := filepath.Abs(dataDir)
	if err != nil {
		return nil, err
	}
	if a.network != "" {
		return []lease.Pool{{DataDir: dataDir, Network: a.network}}, nil
	}
	dirs, err := os.ReadDir(dataDir)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	var out []lease.Pool
	for _, d := range dirs {
		if d.IsDir() && d.Name() != "reserved" {
			out = append(out, lease.Pool{DataDir: dataDir, Network: d.Name()})
		}
	}
	return out, nil
}

func (a *app) adopt(cmd *cobra.Command, w witnesses, pools []lease.Pool) error {
	svc := a.service()
	svc.CacheDirs = w.cacheDirs
	if len(w.cacheDirs) > 0 {
		svc.CacheDirs = append(svc.CacheDirs, defaultCacheDirs...)
	}
	for _, p := range pools {
		if w.dryRun {
			if err := a.preview(cmd.Context(), svc, p); err != nil {
				return err
			}
			continue
		}
		before, after, err := svc.Import(cmd.Context(), ipam.Where{Pool: p})
		if err != nil {
			return err
		}
		fmt.Fprintf(a.Stdout, "network %s: %d leases, %d before\n", p.Network, after, before)
	}
	return nil
}

func (a *app) preview(ctx context.Context, svc *ipam.Service, p lease.Pool) error {
	found, problems, err := svc.Preview(ctx, ipam.Where{Pool: p})
	for _, text := range problems {
		fmt.Fprintln(a.Stderr, "leasectl:", text)
	}
	if err != nil {
		return err
	}
	now := a.now()
	return table(a.Stdout, func(out io.Writer) {
		fmt.Fprintln(out, "NETWORK\tADDRESS\tPOD\tSTATE\tUNTIL\tCONTAINER\tWHY")
		for _, f := range found {
			r := rowOf(f.Lease, now)
			fmt.Fprintln(out, strings.Join([]string{p.Network, r.Address, podText(r), stateText(r), or(r.Until), short(r.Container), f.Why}, "\t"))
		}
	})
}
