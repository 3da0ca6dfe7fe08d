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
	if err == nil || !strings.Contains(err.Error(), `"always" is not a pin mode; want "require", "prefer" or "none"`) {
		t.Errorf("error %v does not name the accepted modes", err)
	}
}

func TestParsePatience(t *testing.T) {
	for _, row := range readTable(t, "testdata/patience.txt") {
		got, err := ParsePatience(row.value)
		if isError := row.meaning == "error"; (err != nil) != isError || !isError && got != row.want(t) {
			t.Errorf("%q: %s, %v; want %s", row.value, got, err, row.meaning)
		}
	}
}
