package bed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Healthy returns an error if a running cluster cannot be used.
func (b *Bed) Healthy(ctx context.Context) error {
	if exists(b.path("run/borrowed")) {
		return errors.New("the last run did not finish")
	}
	for _, name := range append(b.NodeNames(), control) {
		if b.PID(name) == 0 {
			return fmt.Errorf("machine %s is off", name)
		}
	}
	return b.waitReadyFor(ctx, 30*time.Second)
}

// Borrow marks the cluster as being changed by a run. giveBack removes the mark, when the run has
// restored the nodes.
func (b *Bed) Borrow() (giveBack func() error, err error) {
	path := b.path("run/borrowed")
	return func() error { return os.Remove(path) }, writeFile(path, nil)
}

// Refresh deploys the plugin, the agent, the manager and the manifests of the source tree to a
// running cluster.
func (b *Bed) Refresh(ctx context.Context) error {
	if err := b.buildTrace(ctx); err != nil {
		return err
	}
	if !b.Keeps() {
		return nil
	}
	if _, err := b.buildProgram(ctx, leasectl); err != nil {
		return err
	}
	if _, err := b.BuildImages(ctx, append(bedImages(), b.ProductImages("bed")...)); err != nil {
		return err
	}
	changed, err := b.imagesChanged()
	if err != nil {
		return err
	}
	if changed {
		b.say("importing changed images on the nodes")
		if err := b.importEverywhere(ctx); err != nil {
			return err
		}
	}
	if err := b.apply(ctx); err != nil {
		return err
	}
	if changed {
		if err := b.restart(ctx); err != nil {
			return err
		}
	}
	return b.WaitDeployed(ctx, 2*time.Minute)
}
