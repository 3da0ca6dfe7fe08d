package cli

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/store"
)

func (a *app) history() *cobra.Command {
	return &cobra.Command{
		Use:   "history [address | namespace/pod]",
		Short: "Show which pods had an address, when, and why it changed",
		Long: fmt.Sprintf(`Print the journal entries of an address, of a pod, or of the node, oldest first.
The journal has the last %d entries, and at most 4 MiB. Boots of the node do not
remove entries; the loss of the store does. If there were earlier entries, the first
line is an event %s with the time from which the journal is complete.`,
			store.JournalSize, journalBegins),
		Example:           "  leasectl history 10.244.1.7\n  leasectl history db/db-0\n  leasectl history",
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeSubject,
		RunE: func(cmd *cobra.Command, args []string) error {
			keep := func(store.Entry) bool { return true }
			if len(args) == 1 {
				s, err := parseSubject(args[0])
				if err != nil {
					return err
				}
				keep = func(n store.Entry) bool { return s.is(n.Address, n.Namespace, n.Name) }
			}
			entries, err := a.entries(cmd.Context(), func(n store.Entry) bool {
				return keep(n) && (a.network == "" || n.Network == a.network) && a.isFor(n.Namespace, n.Reservation)
			})
			if err != nil {
				return err
			}
			return a.printEntries(entries)
		},
	}
}

// journalBegins is the event of the first line of a history if the journal once had earlier
// entries.
const journalBegins store.Event = "JournalBegins"

// entries returns the entries of the journal for which keep reports true. If the journal once had
// earlier entries, the first element says why it does not have them any more.
func (a *app) entries(ctx context.Context, keep func(store.Entry) bool) (out []store.Entry, err error) {
	err = a.view(ctx, func(tx *store.Tx) error {
		out = nil
		isFirst := true
		tx.JournalAfter(0, math.MaxInt, func(seq uint64, n store.Entry) {
			begin := store.Entry{Time: n.Time, Event: journalBegins}
			switch {
			case !isFirst:
			case seq > 1:
				begin.Reason = "earlier entries were removed, because the journal was full"
				out = append(out, begin)
			case n.Event == store.EventRecovered:
				begin.Reason = "earlier entries were lost with the store"
				out = append(out, begin)
			}
			isFirst = false
			if keep(n) {
				out = append(out, n)
			}
		})
		return nil
	})
	return out, err
}

// line is the JSON form of a journal entry. Its fields are a stable interface.
type line struct {
	Time      string `json:"time"`
	Event     string `json:"event"`
	Network   string `json:"network"`
	Address   string `json:"address"`
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	UID       string `json:"uid"`
	Container string `json:"container"`
	Interface string `json:"interface"`
	Reason    string `json:"reason"`

	Reservation string `json:"reservation"`
}

func (a *app) printEntries(entries []store.Entry) error {
	lines := make([]line, len(entries))
	for i, n := range entries {
		lines[i] = line{
			n.Time.UTC().Format(time.RFC3339), string(n.Event), n.Network, addressText(n), n.Namespace, n.Name, n.UID,
			n.Container, n.IfName, n.Reason, n.Reservation,
		}
	}
	if a.output == "json" {
		return printJSON(a.Stdout, lines)
	}
	return table(a.Stdout, func(w io.Writer) {
		fmt.Fprintln(w, "TIME\tEVENT\tADDRESS\tPOD\tCONTAINER\tREASON")
		for _, l := range lines {
			pod := podText(row{Namespace: l.Namespace, Pod: l.Pod})
			fmt.Fprintln(w, strings.Join([]string{l.Time, l.Event, dash(l.Address), pod, short(l.Container),
				dash(l.Reason)}, "\t"))
		}
	})
}

func addressText(n store.Entry) string {
	if !n.Address.IsValid() {
		return ""
	}
	return n.Address.String()
}
