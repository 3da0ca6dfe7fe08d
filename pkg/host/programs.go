package host

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Running returns the ID of a process whose program is accepted, 0 if there is none. accept gets
// the file name of the program, and a path by which it can be opened as long as the process runs.
// Running does not look at its own process. If it finds none and does not see all processes of the
// node, it returns an error.
func (h *Host) Running(accept func(name, path string) bool) (found int, err error) {
	seesItself := false
	e := h.eachProcess(func(id string) {
		pid, _ := strconv.Atoi(id)
		path := filepath.Join(h.proc, id, "exe")
		program, e := os.Readlink(path)
		switch name := filepath.Base(strings.TrimSuffix(program, " (deleted)")); {
		case pid == os.Getpid():
			seesItself = true
		case isNothing(e): // a kernel thread, or it has ended
		case e != nil:
			err = fmt.Errorf("which program runs is not known: %w", e)
		case accept(name, path):
			found = pid
		}
	})
	switch {
	case found != 0:
		return found, nil
	case e != nil:
		return 0, e
	case err == nil && !seesItself:
		err = fmt.Errorf("%s does not show the processes of this node; a container needs hostPID", h.proc)
	}
	return 0, err
}
