package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/cli"
	"github.com/leasehold-cni/leasehold/pkg/store"
	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// Leases runs leasectl on a node. Expired holds that the agent has not ended yet are included only
// if all is set.
func Leases(ctx context.Context, node machine.Machine, leasectl string, all bool) (leases []cli.Row, err error) {
	err = runJSON(ctx, node, &leases, leasectl, "-o", "json", "list", fmt.Sprintf("--all=%v", all))
	return leases, err
}

// History returns the journal of a node, the oldest entry first.
func History(ctx context.Context, node machine.Machine, leasectl string) (entries []store.Entry, err error) {
	err = runJSON(ctx, node, &entries, leasectl, "-o", "json", "history")
	return entries, err
}

// runJSON runs a command on a node, and decodes the JSON that it prints.
func runJSON(ctx context.Context, node machine.Machine, into any, argv ...string) error {
	out, err := node.Run(ctx, argv...)
	if err != nil {
		return err
	}
	if err := json.NewDecoder(bytes.NewReader(out)).Decode(into); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(argv, " "), err, out)
	}
	return nil
}
