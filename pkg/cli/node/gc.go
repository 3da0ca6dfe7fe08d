package node

import (
	"errors"
	"slices"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/maintain"
)

func (a *app) gc() *cobra.Command {
	var dryRun bool
	c := &cobra.Command{
		Use:   "gc",
		Short: "End expired holds and release leases of dead sandboxes",
		Long: `Compare the store with the host once, as the node agent does all the time: end
expired holds, release the leases of sandboxes that are proven dead, and apply
queued DELs. This command is for nodes without an agent; with --dry-run it shows
what the agent would do, and why.

It has to run on the node itself, as root: unless it sees the host's processes
and mounts it does nothing. Leases whose sandbox is neither found nor proven dead
are not released; if all sandboxes look dead, none is. Both are reported on stderr.`,
		Example: "  leasectl gc --dry-run\n  leasectl gc -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !dryRun {
				if err := a.service().ApplyQueue(cmd.Context()); err != nil {
					return err
				}
			}
			survey, err := a.service().Survey(cmd.Context())
			if err != nil {
				return err
			}
			if survey.Unsafe != nil {
				return survey.Unsafe
			}
			if survey.WhyUnknown != nil {
				a.Say("%v", survey.WhyUnknown)
			}
			plan := slices.DeleteFunc(maintain.Plan(survey), func(p maintain.Action) bool {
				return p.Do == maintain.WriteFile // host-local may be in the middle of a DEL: the agent writes the file
			})
			if dryRun {
				return a.printPlan(plan, true)
			}
			done, err := a.service().Act(cmd.Context(), plan)
			return errors.Join(a.printPlan(done, false), err)
		},
	}
	a.OutputFlag(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be done, and why, without doing it")
	return c
}

func (a *app) printPlan(plan []maintain.Action, dryRun bool) error {
	now := a.Clock()
	steps := make([]cli.Action, len(plan))
	for i, p := range plan {
		steps[i] = cli.Action{Action: string(p.Do), Row: rowOf(p.Lease, now), Reason: p.Reason, DryRun: dryRun}
	}
	return cli.PrintRows(a.App, steps, "ACTION NETWORK ADDRESS POD CONTAINER REASON", func(s cli.Action) []string {
		return []string{s.Action, s.Network, s.Address, podOf(s.Row), short(s.Container), s.Reason}
	})
}
