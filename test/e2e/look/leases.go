package look

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/leasehold-cni/leasehold/test/e2e/machine"
)

// Lease is a line of `leasectl -o json list`.
type Lease struct {
	Network   string
	Address   string
	Namespace string
	Pod       string
	UID       string
	Interface string
	Container string
	State     string // Bound or Held
	Firm      bool
	Window    string
	Until     string
}

// Leases reads a node's store, on the node.
func Leases(ctx context.Context, node machine.Client, leasectl string) ([]Lease, error) {
	out, err := node.Run(ctx, leasectl, "-o", "json", "list")
	if err != nil {
		return nil, err
	}
	var leases []Lease
	if err := json.NewDecoder(bytes.NewReader(out)).Decode(&leases); err != nil {
		return nil, fmt.Errorf("leasectl list: %w\n%s", err, out)
	}
	return leases, nil
}
