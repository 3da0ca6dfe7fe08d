package node

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

func (a *app) history() *cobra.Command {
	c := &cobra.Command{
		Use:   "history [address | namespace/pod]",
		Short: "Show which pods had an address, when, and why it changed",
		Long: fmt.Sprintf(`Print the journal entries of an address, of a pod, or of the node, oldest first.
The journal has the last %d entries. Boots of the node do not remove entries; the
loss of the store does. If there were earlier entries, the first line is an event
%s with the time from which the journal is complete.`,
			store.JournalSize, journalBegins),
		Example: "  leasectl history 10.244.1.7\n  leasectl history db/db-0\n  leasectl history",
		Args:    a.Parse,
		RunE: func(cmd *cobra.Command, args []string) error {
			entries, err := a.entries(cmd.Context())
			if err != nil {
				return err
			}
			const heads = "TIME EVENT ADDRESS POD CONTAINER REASON"
			return cli.PrintRows(a.App, entries, heads, func(n store.Entry) []string {
				return []string{n.Time.Format(time.RFC3339), string(n.Event), cli.AddressText(n.Address),
					cli.Qualified(n.Namespace, n.Name), short(n.Container), n.Reason}
			})
		},
	}
	a.OutputFlag(c)
	a.networkFlag(c)
	a.ReserveAsFlag(c)
	return c
}

// journalBegins is the event of the first line of a history if the journal once had earlier
// entries.
const journalBegins store.Event = "JournalBegins"

// entries returns the entries of the journal that the filter selects. If the journal once had
// earlier entries, the first element says why it does not have them any more.
func (a *app) entries(ctx context.Context) (out []store.Entry, err error) {
	err = a.store().View(ctx, func(tx *store.Tx) error {
		out = []store.Entry{}
		isFirst := true
		for seq, n := range tx.Entries(0) {
			begin := store.Entry{Time: n.Time, Event: journalBegins}
			if seq > 1 {
				begin.Reason = "earlier entries were removed, because the journal was full"
			} else if n.Event == store.EventRecovered {
				begin.Reason = "earlier entries were lost with the store"
			}
			if isFirst && begin.Reason != "" {
				out = append(out, begin)
			}
			isFirst = false
			if (a.network == "" || n.Network == a.network) &&
				a.Selects(n.Namespace, n.Name, n.ReserveAs, n.Address.String()) {
				out = append(out, n)
			}
		}
		return nil
	})
	for i := range out {
		out[i].Time = out[i].Time.UTC().Truncate(time.Second)
	}
	return out, err
}
