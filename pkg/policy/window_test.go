package policy

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/pkg/lease"
	"github.com/leasehold-cni/leasehold/test/check"
	"github.com/leasehold-cni/leasehold/test/must"
)

// tableRow is a line of a file in testdata.
type tableRow struct {
	value, meaning string
}

func readTable(t testing.TB, name string) []tableRow {
	t.Helper()
	data := must.Read(t, name)
	var rows []tableRow
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		quoted, err := strconv.QuotedPrefix(line)
		must.Succeed(t, err, "line", line)
		value, _ := strconv.Unquote(quoted)
		rows = append(rows, tableRow{value, strings.TrimSpace(line[len(quoted):])})
	}
	return rows
}

// want returns the window that a row stands for.
func (r tableRow) want(t *testing.T) lease.Window {
	switch r.meaning {
	case "none":
		return 0
	case "forever":
		return lease.Forever
	}
	d, err := time.ParseDuration(r.meaning)
	must.Succeed(t, err)
	return lease.Window(d)
}

func TestParseWindow(t *testing.T) {
	for _, row := range readTable(t, "testdata/windows.txt") {
		t.Run(row.value, func(t *testing.T) {
			got, err := ParseWindow(row.value)
			if row.meaning == "error" {
				if err == nil {
					t.Fatalf("%q is parsed as %v, want an error", row.value, got)
				}
				for _, part := range []string{strconv.Quote(row.value), `"10"`, `"90s"`, `"forever"`, "10 years"} {
					check.Contains(t, err.Error(), part)
				}
				return
			}
			if want := row.want(t); err != nil || got != want {
				t.Errorf("%q is parsed as %v (%v), want %v", row.value, got, err, want)
			}
		})
	}
}

func TestQuote(t *testing.T) {
	tests := []struct{ in, want string }{
		{"abc", `"abc"`},
		{"a\x00b\n\x1b[2J", `"a\x00b\n\x1b[2J"`},
		{strings.Repeat("x", 64), `"` + strings.Repeat("x", 64) + `"`},
		{strings.Repeat("x", 10000), `"` + strings.Repeat("x", 64) + `"... (10000 bytes)`},
	}
	for _, tt := range tests {
		check.Equal(t, Quote(tt.in), tt.want)
	}
}

// FuzzParseWindow verifies that an accepted window is in range and matches the exported
// expressions, and that the length of an error does not depend on the length of the text.
func FuzzParseWindow(f *testing.F) {
	for _, row := range readTable(f, "testdata/windows.txt") {
		f.Add(row.value)
	}
	forms := regexp.MustCompile(minutesPattern + "|" + durationPattern + "|^" + lease.Forever.String() + "$")
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseWindow(s)
		if err != nil {
			check.Between(t, len(err.Error()), 0, 600)
			return
		}
		if d < 0 || (d > MaxWindow && d != lease.Forever) {
			t.Errorf("%q is parsed as %v", s, d)
		}
		if !forms.MatchString(s) {
			t.Errorf("%q is parsed as %v, but the admission policy would reject it", s, d)
		}
	})
}
