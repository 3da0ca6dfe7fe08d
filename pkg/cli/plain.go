package cli

import (
	"io"
	"strconv"
	"strings"
	"unicode"
)

// plain writes text with control characters made visible. Names come from runtimes and pods, and a
// terminal would interpret escape sequences in them.
type plain struct{ io.Writer }

func (p plain) Write(b []byte) (int, error) {
	var out strings.Builder
	for _, r := range string(b) {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			out.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		} else {
			out.WriteRune(r)
		}
	}
	if _, err := io.WriteString(p.Writer, out.String()); err != nil {
		return 0, err
	}
	return len(b), nil
}
