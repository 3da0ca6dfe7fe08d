package kube

import "testing"

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		text             string
		limit            int
		wantCut, wantFit string
	}{
		{"", 0, "", ""},
		{"abc", 3, "abc", "abc"},
		{"abcd", 3, "abc", ""},
		{"aä", 2, "a", ""}, // ä has two bytes
		{"ä", 1, "", ""},
	} {
		if got := Cut(tt.text, tt.limit); got != tt.wantCut {
			t.Errorf("Cut(%q, %d) = %q, want %q", tt.text, tt.limit, got, tt.wantCut)
		}
		if got := Short(tt.text, tt.limit); got != tt.wantFit {
			t.Errorf("Short(%q, %d) = %q, want %q", tt.text, tt.limit, got, tt.wantFit)
		}
	}
}
