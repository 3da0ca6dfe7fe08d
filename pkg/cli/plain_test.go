package cli

import (
	"bytes"
	"fmt"
	"testing"
)

// A name that a runtime chose may have terminal sequences in it.
func TestOnlyPlainTextIsPrinted(t *testing.T) {
	var out bytes.Buffer
	n, err := fmt.Fprintf(plain{&out}, "eth0\x1b[2J\r\a\x7f\u009b1m \tä\n")
	if want := `eth0\x1b[2J\r\a\x7f\u009b1m ` + "\tä\n"; err != nil || out.String() != want {
		t.Errorf("printed %q, %v; want %q", out.String(), err, want)
	}
	if want := len("eth0\x1b[2J\r\a\x7f\u009b1m \tä\n"); n != want {
		t.Errorf("%d bytes are reported as written, want %d", n, want)
	}
}
