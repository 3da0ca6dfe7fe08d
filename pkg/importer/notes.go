package importer

import "fmt"

// notes are the warnings about sources that one call of Find collects for stderr.
type notes struct {
	texts  []string
	unread bool // a source that may name an address in use could not be read
}

// addUnread adds a note about a source that cannot be read and may name an address in use.
func (n *notes) addUnread(format string, args ...any) {
	n.unread = true
	n.add(format, args...)
}

func (n *notes) add(format string, args ...any) {
	n.texts = append(n.texts, fmt.Sprintf(format, args...))
}
