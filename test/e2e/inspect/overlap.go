package inspect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/leasehold-cni/leasehold/test/e2e/history"
)

// An OverlapWatch repeatedly reads the addresses in all network namespaces of some nodes, to find
// an address that is in two of them.
type OverlapWatch struct {
	mu     sync.Mutex
	record *history.Recorder // may be nil
	seen   map[string]bool
	found  []string
	passes int
}

// Start watches until ctx is done. roots returns the nodes' file systems, which change when a node
// reboots.
func (w *OverlapWatch) Start(ctx context.Context, roots func() []string) {
	w.seen = map[string]bool{}
	go func() {
		for ctx.Err() == nil {
			w.pass(roots())
			select {
			case <-ctx.Done():
			case <-time.After(200 * time.Millisecond):
			}
		}
	}()
}

// Record has all that is seen from now on recorded.
func (w *OverlapWatch) Record(r *history.Recorder) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.record = r
}

// Found returns a description of each duplicate, and the number of passes.
func (w *OverlapWatch) Found() ([]string, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.found), w.passes
}

func (w *OverlapWatch) pass(roots []string) {
	began := time.Now()
	holder := map[netip.Addr]string{}
	seen, unread := map[string][]netip.Addr{}, map[string]bool{}
	for _, root := range roots {
		paths, _ := NetNSes(root) // a node that is off has none
		for _, path := range paths {
			addrs, err := readAddresses(path)
			seen[filepath.Base(path)], unread[filepath.Base(path)] = addrs, err != nil
			for _, ip := range addrs {
				other, taken := holder[ip]
				holder[ip] = path
				// The address may have moved in between, so read both again.
				if taken && slices.Contains(allAddresses(other), ip) && slices.Contains(allAddresses(path), ip) {
					w.report(fmt.Sprintf("%v is in %s and in %s", ip, other, path))
				}
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.passes++
	if w.record != nil {
		w.record.Seen(began, time.Now(), seen, unread)
	}
}

func (w *OverlapWatch) report(s string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.seen[s] {
		w.seen[s] = true
		w.found = append(w.found, s)
	}
}

func allAddresses(path string) []netip.Addr {
	all, _ := readAddresses(path)
	return all
}

// readAddresses returns all addresses in a network namespace, none if it was just removed.
func readAddresses(path string) (all []netip.Addr, err error) {
	found, err := Addresses(path)
	for _, addrs := range found {
		all = append(all, addrs...)
	}
	// The path of a namespace that was removed, or is not mounted yet, is missing or a plain file.
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) {
		err = nil
	}
	return all, err
}
