package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/store"
)

func (c *cluster) history() *cobra.Command {
	command := &cobra.Command{
		Use:   "history [address | namespace/pod]",
		Short: "Show which pods had an address, when, and why it changed",
		Long: `Print the journal entries of an address, of a pod, or all, of each node, oldest
first. Each node keeps its last entries, also when it boots: an event JournalBegins has
the time from which they are complete. Nodes without a running agent, and nodes that
have left the cluster, are not asked. It runs leasectl in the pods of the agents, which
needs the right to create pods/exec in leasehold's namespace.`,
		Example: "  kubectl leasehold history 10.244.1.7\n  kubectl leasehold history db/db-0 --node=node1",
		Args:    c.Parse,
		RunE: func(cmd *cobra.Command, args []string) error {
			entries, err := c.journals(cmd.Context(), args)
			const heads = "TIME NODE EVENT ADDRESS POD REASON"
			return errors.Join(err, cli.PrintRows(c.App, entries, heads, func(n cli.NodeEntry) []string {
				return []string{n.Time.Format(time.RFC3339), n.Node, string(n.Event), cli.AddressText(n.Address),
					cli.Qualified(n.Namespace, n.Name), n.Reason}
			}))
		},
	}
	c.OutputFlag(command)
	c.nodeFlag(command)
	return command
}

// journals returns the journal entries of all nodes, sorted by time. It returns an error if it
// could not read the journals of some nodes, together with the entries of the others.
func (c *cluster) journals(ctx context.Context, args []string) ([]cli.NodeEntry, error) {
	pods, err := c.someAgents(ctx)
	all := []cli.NodeEntry{}
	for i, p := range pods {
		c.Say("reading the journal of node %s (%d of %d)", nodeOf(p), i+1, len(pods))
		var entries []store.Entry
		if e := c.readNode(ctx, p, &entries, append([]string{"history"}, args...)...); e != nil {
			err = errors.Join(err, fmt.Errorf("node %s: %w", nodeOf(p), e))
			continue
		}
		for _, n := range entries {
			all = append(all, cli.NodeEntry{Node: nodeOf(p), Entry: n})
		}
	}
	slices.SortStableFunc(all, func(a, b cli.NodeEntry) int { return a.Time.Compare(b.Time) })
	return all, err
}
