package transact

import (
	"net"
	"slices"

	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// Retained returns the leases of an attachment that have a key. The plugin's chained entry keeps
// the hardware address for these leases.
func (c *Call) Retained(who lease.Attachment) ([]lease.Lease, error) {
	leases, err := c.Tx.ByHolder(who.ContainerID, who.IfName)
	return slices.DeleteFunc(leases, func(l lease.Lease) bool { return l.Key().IsZero() }), err
}

// SetMAC records the hardware address of the interface that has the leases.
func (c *Call) SetMAC(leases []lease.Lease, mac net.HardwareAddr) error {
	for _, l := range leases {
		next, err := lease.Apply(l, lease.SetMAC{Holder: l.Holder, MAC: mac.String()}, c.Now)
		if err == nil && next.MAC != l.MAC {
			err = c.Put(l, next)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
