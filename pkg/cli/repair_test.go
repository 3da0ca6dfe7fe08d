package cli

import "testing"

func TestCommandQuotes(t *testing.T) {
	got := ShellCommand("kubectl", "patch", "-p", `{"a":"it's"}`, "--dir=/a b")
	if want := `kubectl patch -p '{"a":"it'\''s"}' '--dir=/a b'`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
