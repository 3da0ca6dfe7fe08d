package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
	"github.com/leasehold-cni/leasehold/pkg/policy"
)

// importFlags are the flags that import and recover have in common.
type importFlags struct {
	dataDir   string
	cacheDirs []string
	dryRun    bool
}

func (f *importFlags) register(c *cobra.Command) {
	c.Flags().StringVar(&f.dataDir, "data-dir", policy.DefaultDataDir,
		"host-local's dataDir, with a directory for each network")
	c.Flags().StringSliceVar(&f.cacheDirs, "cni-cache-dir", nil,
		"directory of libcni's result cache, in addition to the default ones (may be repeated)")
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "print what would be adopted, and why, without doing it")
}

func (a *app) importCmd() *cobra.Command {
	var flags importFlags
	c := &cobra.Command{
		Use:   "import",
		Short: "Adopt addresses that are in use or reserved on this node",
		Long: `Create leases for addresses that are not in the store yet: those in living network
namespaces, in libcni's result cache, in host-local's files, and in the
reservations of the Kruise fork. The first call of the plugin for a network does
the same; this command shows it in advance with --dry-run, or repeats it.`,
		Example: "  leasectl import --dry-run\n  leasectl import --network cbr0",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pools, err := a.networks(flags.dataDir)
			if err != nil {
				return err
			}
			if len(pools) == 0 {
				fmt.Fprintf(a.Stderr, "leasectl: %s contains no networks; name one with --network\n", flags.dataDir)
				return errProblems
			}
			return a.adopt(cmd, flags, pools)
		},
	}
	flags.register(c)
	return c
}

// networks returns the pools of a dataDir: only that of the flag --network, if it is set, otherwise
// one for each directory in dataDir. The directory "reserved" is not a network, because the Kruise
// fork has its reservations there.
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

func (a *app) adopt(cmd *cobra.Command, flags importFlags, pools []lease.Pool) error {
	svc := a.service()
	svc.CacheDirs = flags.cacheDirs
	if len(flags.cacheDirs) > 0 {
		svc.CacheDirs = append(svc.CacheDirs, defaultCacheDirs...)
	}
	all, previewed := []adopted{}, []candidate{}
	for i, p := range pools {
		a.progress("network %s (%d of %d)", p.Network, i+1, len(pools))
		if flags.dryRun {
			found, err := a.preview(cmd.Context(), svc, p)
			if err != nil {
				return err
			}
			previewed = append(previewed, found...)
			continue
		}
		before, after, err := svc.Import(cmd.Context(), p, nil)
		if err != nil {
			return err
		}
		all = append(all, adopted{p.Network, before, after})
		if a.output != "json" {
			fmt.Fprintf(a.Stdout, "network %s: %d leases, %d before\n", p.Network, after, before)
		}
	}
	switch {
	case a.output != "json":
	case flags.dryRun:
		return printJSON(a.Stdout, previewed)
	default:
		return printJSON(a.Stdout, all)
	}
	return nil
}

// adopted is the JSON form of a network whose leases were adopted: the number of its leases before
// and after the adoption. Its fields are a stable interface.
type adopted struct {
	Network string `json:"network"`
	Before  int    `json:"before"`
	After   int    `json:"after"`
}

// candidate is the JSON form of a lease that would be adopted. Its fields are a stable interface.
type candidate struct {
	row
	Why string `json:"why"`
}

func (a *app) preview(ctx context.Context, svc *maintain.Service, p lease.Pool) (out []candidate, err error) {
	found, problems, err := svc.Preview(ctx, p, nil)
	for _, text := range problems {
		fmt.Fprintln(a.Stderr, "leasectl:", text)
	}
	if err != nil {
		return nil, err
	}
	now := a.Clock()
	for _, f := range found {
		out = append(out, candidate{rowOf(f.Lease, now), f.Why})
	}
	if a.output == "json" {
		return out, nil
	}
	return out, table(a.Stdout, func(out io.Writer) {
		fmt.Fprintln(out, "NETWORK\tADDRESS\tPOD\tSTATE\tUNTIL\tCONTAINER\tWHY")
		for _, f := range found {
			r := rowOf(f.Lease, now)
			fmt.Fprintln(out, strings.Join([]string{p.Network, r.Address, podText(r), stateText(r), or(r.Until),
				short(r.Container), f.Why}, "\t"))
		}
	})
}
