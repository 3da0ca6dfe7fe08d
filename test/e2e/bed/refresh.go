package bed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// Healthy tells why a bed that was up cannot be used as it is, if so.
func (b *Bed) Healthy(ctx context.Context) error {
	if exists(b.path("run/borrowed")) {
		return errors.New("a run on it did not come to its end")
	}
	for _, name := range append(b.NodeNames(), control) {
		if b.PID(name) == 0 {
			return fmt.Errorf("machine %s is off", name)
		}
	}
	return b.waitReadyFor(ctx, 30*time.Second)
}

// Borrow notes that somebody is about to change the nodes, giveBack that all is as it was.
func (b *Bed) Borrow() (giveBack func() error, err error) {
	path := b.path("run/borrowed")
	return func() error { return os.Remove(path) }, writeFile(path, nil)
}

// Refresh brings a cluster that is up to what is in the source tree now: plugin, agent, manager and manifests.
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
		b.say("the nodes have other images: importing these")
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
