package lease

import (
	"strings"
	"testing"
	"time"

	"github.com/leasehold-cni/leasehold/test/check"
)

func TestNames(t *testing.T) {
	a := func(n int) string { return strings.Repeat("a", n) }
	for _, tt := range []struct {
		of      string
		isValid func(string) bool
		longest int
		valid   []string
		invalid []string
	}{
		{"namespace", IsNamespace, 63, []string{"a", "a-b", "0"},
			[]string{"", "-", "-a", "a-", "A", "a.b", "a_b", "é"}},
		{"pod", IsPodName, 253, []string{"a", "a.b-c", a(100) + ".b"},
			[]string{"", ".", "a.", ".a", "a..b", "a.-b", "A"}},
		{"UID", IsUID, 128, []string{"", "8d0f-1", "A_b:c.d"}, []string{" ", "a b", "a/b", "é"}},
	} {
		for name, want := range map[string]bool{a(tt.longest): true, a(tt.longest + 1): false} {
			check.Equal(t, tt.isValid(name), want, tt.of, "of", len(name), "letters")
		}
		for _, name := range tt.valid {
			if !tt.isValid(name) {
				t.Errorf("%s %q is rejected", tt.of, name)
			}
		}
		for _, name := range tt.invalid {
			if tt.isValid(name) {
				t.Errorf("%s %q is accepted", tt.of, name)
			}
		}
	}
}

func TestWindowString(t *testing.T) {
	if f, s := Forever.String(), Window(90e9).String(); f != "forever" || s != "1m30s" {
		t.Errorf("got %q and %q", f, s)
	}
	if f, s := Forever.Round(time.Hour), Window(90e9).Round(time.Minute); f != Forever || s != Window(2*time.Minute) {
		t.Errorf("rounded to %s and %s", f, s)
	}
}
