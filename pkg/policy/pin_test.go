package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/must"
)

func TestParsePinMode(t *testing.T) {
	for _, row := range readTable(t, "testdata/pins.txt") {
		got, err := ParsePinMode(row.value)
		if (err == nil) != (row.meaning == "ok") || err == nil && string(got) != row.value {
			t.Errorf("%q: %q, %v; want %s", row.value, got, err, row.meaning)
		}
	}
	_, err := ParsePinMode("always")
	if err == nil || !strings.Contains(err.Error(), `"always" is not a pin mode; want "require", "prefer" or "none"`) {
		t.Errorf("error %v does not name the accepted modes", err)
	}
}

func TestParsePatience(t *testing.T) {
	for _, row := range readTable(t, "testdata/patience.txt") {
		got, err := ParsePatience(row.value)
		if (err == nil) != (row.meaning != "error") {
			t.Errorf("%q: %v, want %s", row.value, err, row.meaning)
		}
		want := lease.Forever
		if row.meaning != "forever" && row.meaning != "error" {
			d, err := time.ParseDuration(row.meaning)
			must.Succeed(t, err)
			want = lease.Window(d)
		}
		if err == nil && got != want {
			t.Errorf("%q: %s, want %s", row.value, got, want)
		}
	}
}

// FuzzParsePinMode verifies that an accepted mode equals its text, and that the length of an error
// does not depend on the length of the text.
func FuzzParsePinMode(f *testing.F) {
	for _, row := range readTable(f, "testdata/pins.txt") {
		f.Add(row.value)
	}
	f.Fuzz(func(t *testing.T, s string) {
		mode, err := ParsePinMode(s)
		if err == nil && string(mode) != s {
			t.Errorf("%q is parsed as %q", s, mode)
		}
		if err != nil && len(err.Error()) > 400 {
			t.Errorf("the error has %d bytes", len(err.Error()))
		}
	})
}
