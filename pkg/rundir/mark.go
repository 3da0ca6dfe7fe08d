package rundir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/leasehold-cni/leasehold/pkg/files"
	"github.com/leasehold-cni/leasehold/pkg/lease"
)

// The mark is a file in the run directory that the first Update of a boot creates. Its first line
// is the id of the boot, and the others are the pools in which addresses were given in this boot:
// only in those may a container live that a lost store knew, because a boot ends all containers.
func (d Dir) mark() string { return d.path("used") }

// HasMark reports whether there is a mark, of whichever boot. It costs one system call.
func (d Dir) HasMark() bool {
	_, err := os.Stat(d.mark())
	return err == nil
}

// ReadMark returns the pools of the mark, and reports whether there is a mark of this boot.
func (d Dir) ReadMark() (pools []string, marked bool, err error) {
	b, _, err := files.Read(d.mark())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	of, lines, _ := strings.Cut(string(b), "\n")
	if boot := d.BootID(); boot != "" && of != "" && of != boot {
		return nil, false, nil // the run directory has survived a boot
	}
	return slices.Collect(strings.Lines(lines)), true, nil
}

// SetMark makes a mark of this boot, if there is none. The caller holds the store's lock.
func (d Dir) SetMark() error { return d.addToMark() }

// SetUsed adds a pool to the mark, if it is not there. The caller holds the store's lock.
func (d Dir) SetUsed(p lease.Pool) error { return d.addToMark(poolLine(p)) }

// addToMark makes a mark of this boot with the pools, in addition to those that it has.
func (d Dir) addToMark(pools ...string) error {
	used, marked, err := d.ReadMark()
	pools = slices.DeleteFunc(pools, func(p string) bool { return slices.Contains(used, p) })
	if err == nil && (!marked || len(pools) > 0) {
		err = files.Write(d.mark(), d.BootID()+"\n"+strings.Join(append(used, pools...), ""))
	}
	if err != nil {
		return fmt.Errorf("mark of this boot: %w", err)
	}
	return nil
}

// Used reports whether addresses of a pool may have been given in this boot.
func (d Dir) Used(p lease.Pool) bool {
	pools, _, err := d.ReadMark()
	return err != nil || slices.Contains(pools, poolLine(p))
}
