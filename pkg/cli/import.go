package cli

import (
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/adopt"
	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/lease"
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
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "print what would be imported, and why, without doing it")
}

func (a *app) importCmd() *cobra.Command {
	var flags importFlags
	c := &cobra.Command{
		Use:   "import",
		Short: "Import addresses that are in use or reserved on this node",
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
				a.say("%s contains no networks; name one with --network", flags.dataDir)
				return errProblems
			}
			return a.adopt(cmd, flags, pools)
		},
	}
	a.outputFlag(c)
	a.networkFlag(c)
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
	dataDir = files.Canonical(dataDir)
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
	if svc.Node.CacheDirs = flags.cacheDirs; len(flags.cacheDirs) > 0 {
		svc.Node.CacheDirs = append(svc.Node.CacheDirs, adopt.DefaultCacheDirs...)
	}
	all, previewed, now := []adopted{}, []candidate{}, a.Clock()
	for i, p := range pools {
		a.progress("network %s (%d of %d)", p.Network, i+1, len(pools))
		if flags.dryRun {
			found, problems, err := svc.Preview(cmd.Context(), p, nil)
			for _, text := range problems {
				a.say("%s", text)
			}
			if err != nil {
				return err
			}
			for _, f := range found {
				previewed = append(previewed, candidate{rowOf(f.Lease, now), f.Why})
			}
			continue
		}
		before, after, err := svc.Import(cmd.Context(), p, nil)
		if err != nil {
			return err
		}
		all = append(all, adopted{p.Network, before, after})
	}
	if flags.dryRun {
		return printRows(a, previewed, "NETWORK ADDRESS POD STATE UNTIL CONTAINER WHY", func(c candidate) []string {
			return []string{c.Network, c.Address, c.pod(), c.state(), text(c.Until), short(c.Container), c.Why}
		})
	}
	return printRows(a, all, "NETWORK BEFORE AFTER", func(n adopted) []string {
		return []string{n.Network, strconv.Itoa(n.Before), strconv.Itoa(n.After)}
	})
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
