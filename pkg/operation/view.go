package operation

import (
	"errors"
	"fmt"
)

// ErrNoHostView is returned if it is not proven that this process sees the processes and mounts of
// the host.
var ErrNoHostView = errors.New("the host cannot be seen from here, so nothing is done")

// RecordNamespaces records the namespaces in which the plugin runs, which are those of the runtime.
// Other programs compare them with their own (ProveView).
func (c *Call) RecordNamespaces() error {
	if word := c.node.Host.NamespaceIDs(c.Now.BootID); word != "" && word != c.Tx.NamespaceIDs() {
		return c.Tx.SetNamespaceIDs(word)
	}
	return nil
}

// ProveView returns ErrNoHostView if it is not proven that this process sees the same processes and
// mounts as the plugin. Without that proof a living sandbox may seem to be gone.
func (c *Call) ProveView() error {
	if err := c.node.Host.ProveView(c.Tx.NamespaceIDs(), c.Now.BootID, c.Tx.Bound()); err != nil {
		return fmt.Errorf("%w: %w", ErrNoHostView, err)
	}
	return nil
}

// mayImport returns ErrNoHostView if this call may not import leases, because it is not the
// plugin's and its view is not proven.
func (c *Call) mayImport() error {
	if c.node.Plugin {
		return nil
	}
	return c.ProveView()
}
