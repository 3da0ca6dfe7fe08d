package transact

import (
	"errors"
	"fmt"
)

// ErrNoHostView is why what is seen from here may not be acted on.
var ErrNoHostView = errors.New("the host cannot be seen from here, so nothing is done")

// RecordNamespaces records where the plugin runs, which is where the runtime does:
// the agent proves by it that it sees the same (Survey).
func (c *Call) RecordNamespaces() error {
	if word := c.node.Host.NamespaceIDs(c.Now.BootID); word != "" && word != c.Tx.NamespaceIDs() {
		return c.Tx.SetNamespaceIDs(word)
	}
	return nil
}

// ProveView returns ErrNoHostView where it is not proven that this process sees what
// the plugin sees: there a living sandbox may look dead.
func (c *Call) ProveView() error {
	if err := c.node.Host.ProveView(c.Tx.NamespaceIDs(), c.Now.BootID, c.Tx.Bound()); err != nil {
		return fmt.Errorf("%w: %w", ErrNoHostView, err)
	}
	return nil
}

// mayLearn returns ErrNoHostView where what the host shows may not become leases.
func (c *Call) mayLearn() error {
	if c.node.Plugin {
		return nil
	}
	return c.ProveView()
}
