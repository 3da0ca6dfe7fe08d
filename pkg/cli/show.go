package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

func (a *app) show() *cobra.Command {
	return &cobra.Command{
		Use:   "show <address | namespace/pod>",
		Short: "Show the lease of an address, or the leases of a pod, in detail",
		Long: `Show every field of the lease of an address, or of the leases of a pod, and whether
the network namespace of the container exists now.`,
		Example:           "  leasectl show 10.244.1.7\n  leasectl show db/db-0",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSubject,
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := parseSubject(args[0])
			if err != nil {
				return err
			}
			leases, err := a.leases(cmd.Context(), func(l lease.Lease) bool {
				return s.is(l.Address, l.Namespace, l.Name)
			})
			if err != nil {
				return err
			}
			if len(leases) == 0 {
				return a.noLease(cmd.Context(), s,
					fmt.Sprintf("; 'leasectl history %s' shows whether it had one", args[0]))
			}
			if a.output == "json" {
				return a.print(leases)
			}
			return a.details(leases)
		},
	}
}

func (a *app) details(leases []lease.Lease) error {
	now := a.Clock()
	return table(a.Stdout, func(w io.Writer) {
		for i, l := range leases {
			if i > 0 {
				fmt.Fprintln(w)
			}
			r := rowOf(l, now)
			for _, line := range [][2]string{
				{"Address", r.Address}, {"Network", r.Network}, {"Data directory", l.Pool.DataDir},
				{"State", stateText(r)},
				{"Pod", podText(r)}, {"Pod UID", dash(r.UID)}, {"Interface", r.Interface},
				{"Container", dash(r.Container)},
				{"Network namespace", a.netnsText(l, now)}, {"Window", dash(r.Window)},
				{"Bound at", or(r.BoundAt)}, {"Released at", or(r.ReleasedAt)}, {"Held until", or(r.Until)},
				{"Refused since", or(stamp(l.RefusedAt.Wall))}, {"Lease", r.ID},
			} {
				fmt.Fprintf(w, "%s:\t%s\n", line[0], line[1])
			}
			if r.Reservation != "" {
				fmt.Fprintf(w, "Reservation name:\t%s/%s\n", r.Namespace, r.Reservation)
			}
			if l.Leaving {
				fmt.Fprintln(w, "Note:\tthe pod is being deleted; a new pod of the name waits for the address")
			}
			if l.Superseded {
				fmt.Fprintln(w, "Note:\tthe pod has another address now; this one is released when its sandbox ends")
			}
		}
	})
}

func (a *app) netnsText(l lease.Lease, now lease.Instant) string {
	if l.Holder.Netns.Path == "" {
		return "-"
	}
	life, why := a.Host.QuickState(l.Holder, now.BootID), error(nil)
	if life == lease.Unknown {
		var gone bool
		if gone, why = a.Host.PathGone(l.Holder); gone {
			processes := a.Host.ProcessNetns()
			life, why = processes.Liveness(l.Holder.Netns), processes.Incomplete()
		}
	}
	if life == lease.Unknown && why != nil {
		return fmt.Sprintf("%s (%s: %v)", l.Holder.Netns.Path, life, why)
	}
	return fmt.Sprintf("%s (%s)", l.Holder.Netns.Path, life)
}

// noLease prints that the subject has no lease, or that the filters exclude its leases, and
// returns errProblems.
func (a *app) noLease(ctx context.Context, s subject, hint string) error {
	all := *a
	all.network, all.state = "", ""
	if s.forName == "" {
		all.forName = ""
	}
	found, err := all.leases(ctx, func(l lease.Lease) bool { return s.is(l.Address, l.Namespace, l.Name) })
	if err != nil {
		return err
	}
	if len(found) > 0 {
		hint = ", which --network, --for or --state excludes"
		fmt.Fprintf(a.Stderr, "leasectl: %s has a lease of network %s in state %s%s\n", s, found[0].Pool.Network,
			found[0].State, hint)
		return errProblems
	}
	fmt.Fprintf(a.Stderr, "leasectl: %s has no lease on this node%s\n", s, hint)
	return errProblems
}
