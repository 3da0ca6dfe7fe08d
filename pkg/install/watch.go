package install

import (
	"context"
	"log/slog"
	"syscall"
	"time"
)

// pollEvery is the interval at which Watch examines host-local.
const pollEvery = time.Second

// Watch replaces host-local with the program, which is leasehold's plugin, whenever it is installed
// again, until ctx is done. It waits until host-local is the same file in two steps: before that,
// another program might still be writing it.
func (d Dir) Watch(ctx context.Context, program []byte, log *slog.Logger) {
	var own, seen stamp // of host-local after the last replacement, and in the last step
	failure := ""       // the last error, logged once
	for pause := time.Duration(0); ; pause = pollEvery {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		current := stampAt(d.path(hostLocal))
		changing := current != seen
		if seen = current; changing || current == own && own != (stamp{}) {
			continue
		}
		replaced, err := d.Replace(program)
		if err != nil {
			if err.Error() != failure {
				log.Error("replacing host-local failed", "directory", string(d), "error", err)
			}
			failure = err.Error()
			continue
		}
		if failure, own = "", stampAt(d.path(hostLocal)); replaced {
			log.Warn("host-local was overwritten and has been replaced; if this repeats, another program installs it "+
				"too", "directory", string(d))
		}
	}
}

// stamp changes when a file is written, replaced, renamed or has its mode changed. The zero value
// means that there is no file.
type stamp struct {
	inode uint64
	ctime syscall.Timespec
}

// stampAt returns the stamp of a path. It returns the zero stamp if nothing is there or it could
// not be read.
func stampAt(path string) stamp {
	var s syscall.Stat_t
	if syscall.Lstat(path, &s) != nil {
		return stamp{}
	}
	return stamp{s.Ino, s.Ctim}
}
