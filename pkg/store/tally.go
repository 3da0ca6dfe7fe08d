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

// Call is one call of the plugin, for whoever counts them.
type Call struct {
	Verb   string        // CNI's
	Result string        // "ok", or the code of the error
	Took   time.Duration // from the first line of ours to the answer
	Waited time.Duration // of that, for the store's lock
}

// A call that changes nothing must write nothing, one that fails has no
// transaction, and none knows before its commit how long it will take. So calls
// are not counted in the store. They are a line each in a file of the run
// directory, which is memory: no sync, no lock, some microseconds. The reader
// makes the file; where there is none, nobody counts.

// maxTally is where the file stops growing: its reader has gone.
const maxTally = 1 << 20

func (s *Store) tally() string { return filepath.Join(s.dirs.Run, "calls") }

// Tally leaves a line about a call. What cannot be counted is not.
func (s *Store) Tally(c Call) {
	f, err := os.OpenFile(s.tally(), os.O_WRONLY|os.O_APPEND|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() > maxTally {
		return
	}
	// One write to a file opened for appending is in one piece.
	fmt.Fprintf(f, "%s %s %d %d\n", c.Verb, c.Result, c.Took.Microseconds(), c.Waited.Microseconds())
}

// Tallied reads the lines that Tally leaves. It is for one reader.
type Tallied struct {
	file *os.File
	at   int64
}

// Tallied begins to count, with the next call.
func (s *Store) Tallied() (*Tallied, error) {
	if err := os.MkdirAll(s.dirs.Run, 0o700); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIO, err)
	}
	f, err := os.OpenFile(s.tally(), os.O_RDWR|os.O_CREATE|os.O_TRUNC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrIO, err)
	}
	return &Tallied{file: f}, nil
}

// Next calls fn for every call since the last time. The file begins anew when
// it has grown; a call that ends in that very moment may go uncounted. An error
// says that it was replaced or cannot be read: then Tallied has to be called again.
func (t *Tallied) Next(fn func(Call)) error {
	if !isAt(t.file, t.file.Name()) {
		return fmt.Errorf("%w: %s was removed", ErrIO, t.file.Name())
	}
	b, err := io.ReadAll(io.NewSectionReader(t.file, t.at, 2*maxTally))
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
	if t.at < maxTally/4 {
		return nil
	}
	t.at = 0
	if err := t.file.Truncate(0); err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	return nil
}

// Close ends the counting.
func (t *Tallied) Close() {
	if isAt(t.file, t.file.Name()) {
		os.Remove(t.file.Name())
	}
	t.file.Close()
}

// parseCall reads a line. Verbs and results become labels, of which there must
// be few: anything but a short word of CNI's is refused.
func parseCall(line string) (Call, bool) {
	words := strings.Fields(line)
	if len(words) != 4 || len(words[0]) > 8 || len(words[1]) > 8 || !isWord(words[0]+words[1]) {
		return Call{}, false
	}
	took, err1 := strconv.ParseUint(words[2], 10, 40)
	waited, err2 := strconv.ParseUint(words[3], 10, 40)
	c := Call{Verb: words[0], Result: words[1], Took: time.Duration(took) * time.Microsecond, Waited: time.Duration(waited) * time.Microsecond}
	return c, err1 == nil && err2 == nil
}

func isWord(s string) bool {
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") == ""
}
