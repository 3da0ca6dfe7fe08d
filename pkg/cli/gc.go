package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/ipam"
)

func (a *app) gc() *cobra.Command {
	var dryRun bool
	c := &cobra.Command{
		Use:   "gc",
		Short: "End what is over and release what is dead, as the agent does",
		Long: `Look at the store and at the host, and do what is due: holds that are over end,
leases whose sandbox is proven dead become holds, releases that were spooled are
made true. The node agent does the same all the time; this is for nodes without
one, and with --dry-run to see what it would do, and why.

Nothing is done where the host cannot be seen. What cannot be told of is left
alone, and said on stderr: a lease whose sandbox is not to be found and not proven
gone, or of which no other sandbox lives to compare with. It has to run on the
node itself, as root.`,
		Example: "  leasectl gc --dry-run\n  leasectl gc --network cbr0 -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			survey, err := a.service().Survey(cmd.Context())
			if err != nil {
				return err
			}
			if survey.Blind != nil {
				return survey.Blind
			}
			if survey.Doubt != nil {
				fmt.Fprintf(a.Stderr, "leasectl: %v\n", survey.Doubt)
			}
			plan := a.due(ipam.Plan(survey))
			if !dryRun {
				done, err := a.service().Act(cmd.Context(), plan)
				if err != nil {
					fmt.Fprintf(a.Stderr, "leasectl: %d of %d steps were taken\n", len(done.Taken), len(plan))
					return err
				}
			}
			return a.printPlan(plan, dryRun)
		},
	}
	c.Flags().BoolVar(&dryRun, "dry-run", false, "only print what would be done, and why")
	return c
}

// due are the steps that the global filters select.
func (a *app) due(plan []ipam.Action) []ipam.Action {
	out := []ipam.Action{}
	for _, p := range plan {
		if a.selected(p.Lease) {
			out = append(out, p)
		}
	}
	return out
}

// step is an action as scripts see it.
type step struct {
	Action    string `json:"action"`
	Network   string `json:"network"`
	Address   string `json:"address"`
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Interface string `json:"interface"`
	Container string `json:"container"`
	ID        string `json:"id"`
	Reason    string `json:"reason"`
	DryRun    bool   `json:"dryRun"`
}

func (a *app) printPlan(plan []ipam.Action, dryRun bool) error {
	now := a.now()
	steps := make([]step, len(plan))
	for i, p := range plan {
		r := rowOf(p.Lease, now)
		if !p.Lease.Address.IsValid() {
			r.Address = ""
		}
		steps[i] = step{
			Action: string(p.Do), Network: r.Network, Address: r.Address, Namespace: r.Namespace, Pod: r.Pod,
			Interface: r.Interface, Container: r.Container, ID: r.ID, Reason: p.Reason, DryRun: dryRun,
		}
	}
	if a.output == "json" {
		return printJSON(a.Stdout, steps)
	}
	return table(a.Stdout, func(w io.Writer) {
		fmt.Fprintln(w, "ACTION\tNETWORK\tADDRESS\tPOD\tCONTAINER\tREASON")
		for _, s := range steps {
			pod := podText(row{Namespace: s.Namespace, Pod: s.Pod})
			fmt.Fprintln(w, strings.Join([]string{s.Action, dash(s.Network), dash(s.Address), pod, short(s.Container), s.Reason}, "\t"))
		}
	})
}
