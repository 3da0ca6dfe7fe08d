package cli

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

func (a *app) release() *cobra.Command {
	var force bool
	c := &cobra.Command{
		Use:   "release <address | namespace/pod>",
		Short: "Give up what is kept for an address or a pod",
		Long: `Give up the leases of an address or a pod, so that others may get them. A lease
whose container may still be running stays, and where the node's containers cannot
be seen from here nothing is released. With --force both are: the address may then
be handed out although a container uses it.`,
		Example:           "  leasectl release db/db-0\n  leasectl release 10.244.1.7 --force",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSubject,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := parseSubject(args[0])
			if err != nil {
				return err
			}
			match := func(l lease.Lease) bool { return a.selected(l) && s.is(l.Address, l.Namespace, l.Name) }
			done, err := a.service().Revoke(cmd.Context(), match, force, fmt.Sprintf("released by hand by uid %d", os.Getuid()))
			if errors.Is(err, ipam.ErrBlind) {
				return fmt.Errorf("%w; run it on the node itself, or with --force where the container is known to be gone", err)
			}
			if err != nil {
				return err
			}
			if len(done) == 0 {
				fmt.Fprintf(a.Stderr, "leasectl: %s has no lease on this node\n", s)
				return errProblems
			}
			stands := false
			for _, r := range done {
				if r.Err != nil {
					stands = true
					fmt.Fprintf(a.Stderr, "leasectl: not released: %v; --force releases it all the same\n", r.Err)
					continue
				}
				fmt.Fprintf(a.Stdout, "%s released\n", r.Lease.Address)
			}
			if stands {
				return errProblems
			}
			return nil
		},
	}
	c.Flags().BoolVar(&force, "force", false, "also where the container may still be running, or cannot be seen from here")
	return c
}
