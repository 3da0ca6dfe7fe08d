package netns_test

import (
	"fmt"
	"testing"

	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/lab"
	"github.com/leasehold-cni/leasehold/test/must"
)

// TestReturn verifies with every main plugin that a returned pod with a window has its addresses
// and can be reached at them, that other pods do not get them, and that a pod without a window gets
// the address that host-local would assign.
func TestReturn(t *testing.T) {
	for _, tc := range mainPlugins {
		t.Run(tc.plugin, func(t *testing.T) {
			t.Parallel()
			node := newNode(t)
			net := node.Network("net", tc.version, tc.conf(node))
			db, web := lab.NewPod("default", "db-0", "10"), lab.NewPod("default", "web-0", "")

			first, original := start(t, node, net, db)
			client, clientAddress := start(t, node, net, lab.NewPod("default", "client", ""))
			plain, plainAddress := start(t, node, net, web)
			stop(t, first, net)
			stop(t, plain, net)
			seen := map[string]bool{clientAddress: true}
			for i := range 5 {
				_, address := start(t, node, net, lab.NewPod("default", fmt.Sprint("sibling-", i), ""))
				if address == original || seen[address] {
					t.Errorf("pod %d got %s, but %s is held and %v are in use", i, address, original, seen)
				}
				seen[address] = true
			}

			second, address := start(t, node, net, db.Recreated())
			check.Equal(t, address, original, "db-0 came back with")
			if _, address := start(t, node, net, web.Recreated()); address == plainAddress {
				t.Errorf("web-0 has no window and got %s again, want the next address", address)
			}
			second.Echo()
			held := of(node.Leases(), db)
			if len(held) != 2 {
				t.Fatalf("db-0 has %d leases, want one for each family: %+v", len(held), held)
			}
			for _, l := range held {
				check.Equal(t, l.Container, second.ID, "the container of", l.Address)
				check.Equal(t, l.State, "Bound", "the state of", l.Address)
				must.Succeed(t, client.Ask(l.Address), "connect from another pod to db-0")
			}
		})
	}
}
