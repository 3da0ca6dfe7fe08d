package policy

import (
	"strings"
	"testing"
)

func TestParsePinMode(t *testing.T) {
	for _, row := range readTable(t, "testdata/pins.txt") {
		got, err := ParsePinMode(row.value)
		if (err == nil) != (row.meaning == "ok") || err == nil && string(got) != row.value {
			t.Errorf("%q: %q, %v; want %s", row.value, got, err, row.meaning)
		}
	}
	_, err := ParsePinMode("always")
	if err == nil || !strings.Contains(err.Error(), `"always" is not a pin mode; want "nominate", "require"`) {
		t.Errorf("error %v names no accepted forms", err)
	}
}

// FuzzParsePinMode proves that what is accepted means itself, and that no error text grows with the value.
func FuzzParsePinMode(f *testing.F) {
	for _, row := range readTable(f, "testdata/pins.txt") {
		f.Add(row.value)
	}
	f.Fuzz(func(t *testing.T, s string) {
		mode, err := ParsePinMode(s)
		if err == nil && string(mode) != s {
			t.Errorf("%q means %q", s, mode)
		}
		if err != nil && len(err.Error()) > 400 {
			t.Errorf("an error text of %d bytes", len(err.Error()))
		}
	})
}
