package adopt

import "fmt"

// maxNotes bounds what one call tells its caller.
const maxNotes = 20

// notes are the problems of one reading.
type notes struct {
	texts  []string
	more   int
	unread bool // something that may tell of an address in use
}

// addUnread is add for what may tell of an address in use and cannot be read.
func (n *notes) addUnread(format string, args ...any) {
	n.unread = true
	n.add(format, args...)
}

func (n *notes) add(format string, args ...any) {
	if len(n.texts) == maxNotes {
		n.more++
		return
	}
	n.texts = append(n.texts, fmt.Sprintf(format, args...))
}

func (n *notes) list() []string {
	if n.more == 0 {
		return n.texts
	}
	return append(n.texts, fmt.Sprintf("and %d more problems", n.more))
}
