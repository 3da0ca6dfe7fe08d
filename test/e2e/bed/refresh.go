package bed

import (
	"bytes"
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

// Refresh brings the nodes the plugin as it is in the source tree now.
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
	if _, err := b.BuildImages(ctx, ProductImages("bed")); err != nil {
		return err
	}
	want, err := os.ReadFile(b.path("bin/own/leasehold"))
	if err != nil {
		return err
	}
	stale := false
	for _, name := range b.NodeNames() {
		have, err := os.ReadFile(b.Node(name).Disk("/opt/cni/bin/leasehold"))
		stale = stale || err != nil || !bytes.Equal(have, want)
	}
	if !stale {
		return nil
	}
	b.say("the nodes have another plugin: installing this one")
	for _, name := range b.NodeNames() {
		if err := b.Node(name).importImages(ctx); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"rollout", "restart", "daemonset/leasehold-agent"},
		{"rollout", "status", "daemonset/leasehold-agent", "--timeout=2m"},
	} {
		argv := append([]string{b.Kubectl(), "--kubeconfig=" + b.Kubeconfig(), "-n", "leasehold-system"}, args...)
		if err := run(ctx, argv...); err != nil {
			return err
		}
	}
	return nil
}
