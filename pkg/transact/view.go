package transact

import (
	"errors"
	"fmt"
)

// ErrNoHostView is returned if this process is not proven to see the namespaces of the host.
var ErrNoHostView = errors.New("the host cannot be seen from here, so nothing is done")

// RecordNamespaces records the namespaces of the plugin, which are those of the runtime. With them
// the agent proves that it sees the same (Survey).
func (c *Call) RecordNamespaces() error {
	if word := c.node.Host.NamespaceIDs(c.Now.BootID); word != "" && word != c.Tx.NamespaceIDs() {
		return c.Tx.SetNamespaceIDs(word)
	}
	return nil
}

// ProveView returns ErrNoHostView if it is not proven that this process sees what the plugin sees.
// A living sandbox may then seem to be gone.
func (c *Call) ProveView() error {
	if err := c.node.Host.ProveView(c.Tx.NamespaceIDs(), c.Now.BootID, c.Tx.Bound()); err != nil {
		return fmt.Errorf("%w: %w", ErrNoHostView, err)
	}
	return nil
}

// mayLearn returns ErrNoHostView if this call may not adopt leases.
func (c *Call) mayLearn() error {
	if c.node.Plugin {
		return nil
	}
	return c.ProveView()
}
