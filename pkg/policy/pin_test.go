package policy

import (
	"testing"

	"github.com/leasehold-cni/leasehold/test/check"
)

func TestParsePinMode(t *testing.T) {
	for _, row := range readTable(t, "testdata/pins.txt") {
		got, err := ParsePinMode(row.value)
		if (err == nil) != (row.meaning == "ok") || err == nil && string(got) != row.value {
			t.Errorf("%q: %q, %v; want %s", row.value, got, err, row.meaning)
		}
	}
	_, err := ParsePinMode("always")
	check.Error(t, err, `"always" is not a pin mode; want "require", "prefer" or "none"`)
}

func TestParsePatience(t *testing.T) {
	for _, row := range readTable(t, "testdata/patience.txt") {
		got, err := ParsePatience(row.value)
		if isError := row.meaning == "error"; (err != nil) != isError || !isError && got != row.want(t) {
			t.Errorf("%q: %s, %v; want %s", row.value, got, err, row.meaning)
		}
	}
}
