package cli

import (
	"context"
	"fmt"
	"text/tabwriter"

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
			if err := a.parse(args); err != nil {
				return err
			}
			leases, err := a.leases(cmd.Context(), everyLease)
			if err != nil {
				return err
			}
			if len(leases) == 0 {
				return a.noLease(cmd.Context(),
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
	w := tabwriter.NewWriter(a.Stdout, 0, 4, 3, ' ', 0)
	for i, l := range leases {
		if i > 0 {
			fmt.Fprintln(w)
		}
		r := rowOf(l, now)
		for _, line := range []cell{
			{"Address", r.Address}, {"Network", r.Network}, {"Data directory", l.Pool.DataDir}, {"State", r.state()},
			{"Pod", r.pod()}, {"Pod UID", r.UID}, {"Interface", r.Interface}, {"Container", r.Container},
			{"Network namespace", a.netnsText(l, now)}, {"Window", r.Window}, {"Bound at", text(r.BoundAt)},
			{"Released at", text(r.ReleasedAt)}, {"Held until", text(r.Until)},
			{"Refused since", text(stamp(l.RefusedAt.Wall))}, {"Lease", r.ID},
		} {
			fmt.Fprintf(w, "%s:\t%s\n", line.head, dash(line.text))
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
	return w.Flush()
}

func (a *app) netnsText(l lease.Lease, now lease.Instant) string {
	if l.Holder.Netns.Path == "" {
		return ""
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

// noLease prints that the subject has no lease, or that the flags exclude its leases, and returns
// errProblems.
func (a *app) noLease(ctx context.Context, hint string) error {
	all := *a
	if all.network, all.state = "", ""; a.address+a.pod != "" {
		all.forName = ""
	}
	found, err := all.leases(ctx, everyLease)
	switch {
	case err != nil:
		return err
	case len(found) > 0:
		a.say("%s has a lease of network %s in state %s, which --network, --for or --state excludes", a.subject(),
			found[0].Pool.Network, found[0].State)
	default:
		a.say("%s has no lease on this node%s", a.subject(), hint)
	}
	return errProblems
}
