package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

func (a *app) list() *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "list [address | namespace/pod]",
		Short: "List the addresses that are in use or held",
		Long: `List the leases of this node, or those of an address or a pod. An address is Bound to
a container, or Held for a pod that is away. "Held (cool-down)" is a short hold of a
pod without retention. The column FOR has reservation names.`,
		Example: "  leasectl list\n  leasectl list db/db-0 -o json\n  leasectl list --state=held",
		Args:    a.Parse,
		RunE: func(cmd *cobra.Command, args []string) error {
			leases, err := a.leases(cmd.Context())
			if err != nil {
				return err
			}
			leases = slices.DeleteFunc(leases, func(l lease.Lease) bool { return !all && l.Lapsed(a.Clock()) })
			if err = a.print(leases); err == nil && len(args) > 0 && len(leases) == 0 {
				err = errNoLease
			}
			return err
		},
	}
	a.OutputFlag(c)
	a.networkFlag(c)
	a.ReserveAsFlag(c)
	a.stateFlag(c)
	c.Flags().BoolVar(&all, "all", false, "include expired holds")
	return c
}

// leases returns the leases that match the filters.
func (a *app) leases(ctx context.Context) (out []lease.Lease, err error) {
	err = a.store().View(ctx, func(tx *store.Tx) error {
		out = nil
		for l, err := range tx.All {
			if err != nil {
				a.Say("%v", err)
			} else if a.selected(l) {
				out = append(out, l)
			}
		}
		return nil
	})
	return out, err
}

func (a *app) print(leases []lease.Lease) error {
	now := a.Clock()
	rows := make([]cli.Row, len(leases))
	for i, l := range leases {
		rows[i] = rowOf(l, now)
	}
	const heads = "NETWORK ADDRESS POD INTERFACE STATE UNTIL CONTAINER FOR"
	return cli.PrintRows(a.App, rows, heads, func(r cli.Row) []string {
		return []string{r.Network, r.Address, podOf(r), r.Interface, stateOf(r), text(r.Until), short(r.Container),
			r.ReserveAs}
	})
}

var errNoLease = errors.New("no lease on this node is what the arguments and flags select; leasectl history shows " +
	"former ones")

// rowOf returns a lease as JSON and tables have it.
func rowOf(l lease.Lease, now lease.Instant) cli.Row {
	r := cli.Row{
		Network: l.Pool.Network, Address: cli.AddressText(l.Address), Namespace: l.Namespace, Pod: l.Name, UID: l.UID,
		Interface: l.Holder.IfName, Container: l.Holder.ContainerID, Netns: l.Holder.Netns.Path, MAC: l.MAC,
		State: l.State.String(), IsHold: l.IsHold, ID: l.ID, BoundAt: stamp(l.BoundAt.Wall),
		ReleasedAt: stamp(l.ReleasedAt.Wall), ReserveAs: l.ReserveAs,
	}
	if l.Window > 0 {
		r.Window = l.Window.String()
	}
	if l.State == lease.Held {
		until := l.Until(now)
		if r.Until = stamp(until); until.IsZero() {
			forever := lease.Forever.String()
			r.Until = &forever
		}
	}
	return r
}

func podOf(r cli.Row) string { return cli.Qualified(r.Namespace, r.Pod) }

// stateOf returns the state of a lease for a table. It distinguishes cool-downs from holds.
func stateOf(r cli.Row) string {
	if r.State == lease.Held.String() && !r.IsHold {
		return "Held (cool-down)"
	}
	return r.State
}

// stamp returns a time as JSON has it, nil for none.
func stamp(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	s := t.UTC().Format(time.RFC3339)
	return &s
}

// text returns what a pointer leads to as text, "" if it is nil.
func text[T string | uint64](value *T) string {
	if value == nil {
		return ""
	}
	return fmt.Sprint(*value)
}

// short truncates a container ID to 13 characters, the length that crictl prints.
func short(id string) string { return id[:min(len(id), 13)] }
