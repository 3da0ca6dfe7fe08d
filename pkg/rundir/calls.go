package rundir

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/files"
)

// Call is one call of the plugin, for the metrics.
type Call struct {
	Verb   string        // the CNI verb
	Result string        // "ok", or the error code
	Took   time.Duration // from the start of main to the result
	Waited time.Duration // part of Took: for the store's lock
}

// Calls are not counted in the store: a call that changes nothing must write nothing, a call that
// fails has no transaction, and the duration is not known before the commit. Instead each call
// appends a line to a file in the run directory, which is in memory. That needs no sync and no
// lock, and takes a few microseconds. The agent creates the file and empties it; on a node that
// never had an agent nothing is written.

// maxCallLog is the size in bytes at which the file stops growing, because its reader has stopped.
const maxCallLog = 1 << 20

func (d Dir) callLog() string { return d.path("calls") }

// LogCall appends a line about a call to the call log. Errors are ignored.
func (d Dir) LogCall(c Call) {
	f, err := files.Open(d.callLog(), os.O_WRONLY|os.O_APPEND|syscall.O_NOFOLLOW)
	if err != nil {
		return
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxCallLog {
		return
	}
	// One write to a file that is opened for appending is atomic.
	fmt.Fprintf(f, "%s %s %d %d\n", c.Verb, c.Result, c.Took.Microseconds(), c.Waited.Microseconds())
}

// Calls returns the calls that were logged since the last Calls. From the first one on, the plugin
// logs its calls. A call that ends while Calls empties the log may be missed.
func (d Dir) Calls() (calls []Call, err error) {
	var b []byte
	var f *os.File
	if err = os.MkdirAll(d.Path, 0o700); err == nil {
		f, err = files.Open(d.callLog(), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW)
	}
	if err == nil {
		defer f.Close()
		if b, err = io.ReadAll(io.LimitReader(f, 2*maxCallLog)); err == nil {
			err = f.Truncate(0)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("call log: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if c, ok := parseCall(line); ok {
			calls = append(calls, c)
		}
	}
	return calls, nil
}

// parseCall parses a line. Verbs and results become label values of metrics, which must be few.
// Therefore strings that are longer than those of CNI are rejected.
func parseCall(line string) (Call, bool) {
	fields := strings.Fields(line)
	if len(fields) != 4 || len(fields[0]) > 8 || len(fields[1]) > 8 || !isAlphanumeric(fields[0]+fields[1]) {
		return Call{}, false
	}
	took, err1 := strconv.ParseUint(fields[2], 10, 40)
	waited, err2 := strconv.ParseUint(fields[3], 10, 40)
	c := Call{Verb: fields[0], Result: fields[1], Took: time.Duration(took) * time.Microsecond,
		Waited: time.Duration(waited) * time.Microsecond}
	return c, err1 == nil && err2 == nil
}

func isAlphanumeric(s string) bool {
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") == ""
}
