package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// An OverlapWatch repeatedly reads the addresses in all network namespaces of some nodes, to find
// an address that is in two of them.
type OverlapWatch struct {
	// History, if it is set before Start, gets what each pass has seen.
	History *AddressHistory

	mu     sync.Mutex
	found  []string
	passes int
}

// Start watches until ctx is done. roots returns the nodes' file systems, which change when a node
// reboots.
func (w *OverlapWatch) Start(ctx context.Context, roots func() []string) {
	go wait.UntilWithContext(ctx, func(context.Context) { w.pass(roots()) }, 200*time.Millisecond)
}

// Found returns a description of each duplicate, and the number of passes.
func (w *OverlapWatch) Found() ([]string, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.found), w.passes
}

func (w *OverlapWatch) pass(roots []string) {
	if w.History != nil {
		w.History.observe(roots, NetNSes, addressesIn)
	}
	holder, found := map[netip.Addr]string{}, []string(nil)
	for _, root := range roots {
		for _, path := range NetNSes(root) {
			for _, ip := range allAddresses(path) {
				other, taken := holder[ip]
				holder[ip] = path
				// The address may have moved in between, so read both again.
				if taken && slices.Contains(allAddresses(other), ip) && slices.Contains(allAddresses(path), ip) {
					found = append(found, fmt.Sprintf("%v is in %s and in %s", ip, other, path))
				}
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passes++
	for _, s := range found {
		if !slices.Contains(w.found, s) {
			w.found = append(w.found, s)
		}
	}
}

// allAddresses returns all addresses in a network namespace, none if it was just removed.
func allAddresses(path string) []netip.Addr {
	all, _ := addressesIn(path)
	return all
}

// addressesIn returns all addresses in a network namespace, and fs.ErrNotExist if it was removed.
func addressesIn(path string) ([]netip.Addr, error) {
	found, err := Addresses(path)
	if _, gone := os.Lstat(path); err != nil && errors.Is(gone, fs.ErrNotExist) {
		err = gone
	}
	return slices.Concat(slices.Collect(maps.Values(found))...), err
}
