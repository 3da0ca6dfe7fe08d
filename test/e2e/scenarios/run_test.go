package scenarios

import "testing"

func TestNamesAreUniqueAndFitForNamespaces(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range All() {
		if seen[s.Name] {
			t.Errorf("two scenarios are called %s", s.Name)
		}
		seen[s.Name] = true
		if len(s.Name) > 40 || s.About == "" || s.Run == nil {
			t.Errorf("%s: long name, no description or nothing to run", s.Name)
		}
	}
}

func TestChoose(t *testing.T) {
	tests := []struct {
		pattern string
		want    int
		ok      bool
	}{
		{"", len(All()), true},
		{"^recreate$", 1, true},
		{"reboot", 2, true},
		{"nothing-like-it", 0, false},
		{"(", 0, false},
	}
	for _, tt := range tests {
		got, err := Choose(All(), tt.pattern)
		if len(got) != tt.want || (err == nil) != tt.ok {
			t.Errorf("RUN=%s: %d scenarios, %v; want %d, ok %v", tt.pattern, len(got), err, tt.want, tt.ok)
		}
	}
}
