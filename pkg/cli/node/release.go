package node

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
)

func (a *app) release() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use:   "release <address | namespace/pod>",
		Short: "Release an address, or the addresses of a pod or of a reservation name",
		Long: `Release an address, or the addresses of a pod, or those of a reservation name
(--reserve-as=namespace/name), so that other pods can get them. An address whose
container may still run is not released, and none is without a view of the node's
containers. --force releases it in both cases: it may then be assigned to another
pod while the container still uses it.`,
		Example: "  leasectl release db/db-0\n  leasectl release 10.244.1.7 --force\n" +
			"  leasectl release --reserve-as=db/registry --state=held",
		Args: a.Parse,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && !strings.Contains(a.ReserveAs, "/") {
				return cli.Usage("name an address, a pod, or a reservation name with --reserve-as=namespace/name")
			}
			found, err := a.leases(cmd.Context())
			if err != nil {
				return err
			}
			if len(found) == 0 {
				return errNoLease
			}
			reason := fmt.Sprintf("released with leasectl by uid %d", os.Getuid())
			done, err := a.service().Revoke(cmd.Context(), a.selected, force, reason)
			if err != nil {
				return err
			}
			return a.printReleased(done)
		},
	}
	a.OutputFlag(c)
	a.networkFlag(c)
	a.ReserveAsFlag(c)
	a.stateFlag(c)
	c.Flags().BoolVar(&force, "force", false,
		"release even if the container may still run, or without a view of the node's containers")
	return c
}

func (a *app) printReleased(done []maintain.Revoked) (err error) {
	all, now := []cli.Released{}, a.Clock()
	for _, r := range done {
		one := cli.Released{Row: rowOf(r.Lease, now)}
		if r.Err != nil {
			err, one.Error = cli.ErrProblems, r.Err.Error()+"; use --force to release it nevertheless"
		}
		all = append(all, one)
	}
	return errors.Join(cli.PrintRows(a.App, all, "NETWORK ADDRESS POD RESULT", func(r cli.Released) []string {
		return []string{r.Network, r.Address, podOf(r.Row), cmp.Or(r.Error, "released")}
	}), err)
}
