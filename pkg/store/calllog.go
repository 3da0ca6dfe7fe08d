package store

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
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
// lock, and takes a few microseconds. The agent creates the file and reads it; on a node without an
// agent nothing is written.

// maxCallLog is the size in bytes at which the file stops growing, because its reader has stopped.
const maxCallLog = 1 << 20

func (s *Store) callLogPath() string { return filepath.Join(s.dirs.Run, "calls") }

// LogCall appends a line about a call to the call log. Errors are ignored.
func (s *Store) LogCall(c Call) {
	f, err := os.OpenFile(s.callLogPath(), os.O_WRONLY|os.O_APPEND|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
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

// CallLogReader reads the call log. There may be only one at a time.
type CallLogReader struct {
	file *os.File
	at   int64 // bytes that were read
}

// OpenCallLog creates an empty call log. From the next call on, the plugin writes to it.
func (s *Store) OpenCallLog() (*CallLogReader, error) {
	if err := os.MkdirAll(s.dirs.Run, 0o700); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIO, err)
	}
	f, err := os.OpenFile(s.callLogPath(), os.O_RDWR|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIO, err)
	}
	return &CallLogReader{file: f}, nil
}

// Next calls fn for every call since the last Next. It truncates a long file; a call that ends at
// that moment may be missed. It returns an error if the file was replaced or cannot be read. The
// caller must then close the reader and call OpenCallLog again.
func (t *CallLogReader) Next(fn func(Call)) error {
	if !isAt(t.file, t.file.Name()) {
		return fmt.Errorf("%w: %s was removed", ErrIO, t.file.Name())
	}
	b, err := io.ReadAll(io.NewSectionReader(t.file, t.at, 2*maxCallLog))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	whole := bytes.LastIndexByte(b, '\n') + 1
	for line := range bytes.Lines(b[:whole]) {
		if c, ok := parseCall(string(line)); ok {
			fn(c)
		}
	}
	t.at += int64(whole)
	if t.at < maxCallLog/4 {
		return nil
	}
	t.at = 0
	if err := t.file.Truncate(0); err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	return nil
}

// Close removes the call log and closes the reader.
func (t *CallLogReader) Close() {
	if isAt(t.file, t.file.Name()) {
		os.Remove(t.file.Name())
	}
	t.file.Close()
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
