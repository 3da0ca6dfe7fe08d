package adopt

import "fmt"

// maxNotes is the maximum number of notes of one call.
const maxNotes = 20

// notes are the warnings about sources that one call of Find collects for stderr.
type notes struct {
	texts  []string
	more   int
	unread bool // a source that may name an address in use could not be read
}

// addUnread adds a note about a source that cannot be read and may name an address in use.
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
