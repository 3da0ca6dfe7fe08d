package cli

import (
	"fmt"
	"io"
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
The journal has the last %d entries.`, store.JournalSize),
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
			var entries []store.Entry
			err := a.view(cmd.Context(), func(tx *store.Tx) error {
				entries = nil
				tx.Journal(func(n store.Entry) bool {
					if keep(n) && (a.network == "" || n.Network == a.network) &&
						(a.pod == "" || n.Namespace+"/"+n.Name == a.pod) {
						entries = append(entries, n)
					}
					return true
				})
				return nil
			})
			if err != nil {
				return err
			}
			return a.printEntries(entries)
		},
	}
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
}

func (a *app) printEntries(entries []store.Entry) error {
	lines := make([]line, len(entries))
	for i, n := range entries {
		lines[i] = line{
			n.Time.UTC().Format(time.RFC3339), string(n.Event), n.Network, addressText(n), n.Namespace, n.Name, n.UID,
			n.Container, n.IfName, n.Reason,
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
