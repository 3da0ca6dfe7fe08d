// Package check compares what a test gets with what it wants. The test goes on after a difference.
package check

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	gocmp "github.com/google/go-cmp/cmp"
)

// T is a test, a benchmark, or a property test.
type T interface {
	Helper()
	Errorf(format string, args ...any)
}

// Equal wants two values to be the same. The last arguments say what they are, or which case it is.
func Equal[V comparable](t T, got, want V, about ...any) {
	t.Helper()
	if got == want {
		return
	}
	text := fmt.Sprintf("\n got %+v\nwant %+v", got, want)
	if strings.Count(text, "\n") > 2 {
		text = "(-want +got)\n" + gocmp.Diff(fmt.Sprint(want), fmt.Sprint(got))
	}
	t.Errorf("%s%s", name(about), text)
}

// Slices wants two slices to have the same elements.
func Slices[E comparable](t T, got, want []E, about ...any) {
	t.Helper()
	if slices.Equal(got, want) {
		return
	}
	format := "%s\n got %+v\nwant %+v"
	if _, isText := any(got).([]string); isText {
		format = "%s\n got %q\nwant %q"
	}
	t.Errorf(format, name(about), got, want)
}

// Empty wants a slice without elements.
func Empty[E any](t T, got []E, about ...any) {
	t.Helper()
	if len(got) > 0 {
		t.Errorf("%swant none, got %+v", name(about), got)
	}
}

// Between wants a value that is neither less than the one limit nor more than the other.
func Between[V cmp.Ordered](t T, got, least, most V, about ...any) {
	t.Helper()
	if got < least || got > most {
		t.Errorf("%sgot %v, want %v to %v", name(about), got, least, most)
	}
}

// Is wants errors.Is(err, want), which is true for nil and nil.
func Is(t T, err, want error, about ...any) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s\n got %v\nwant %v", name(about), err, want)
	}
}

// Error wants an error that contains a text, or none if the text is empty.
func Error(t T, err error, text string, about ...any) {
	t.Helper()
	if (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("%s\n got %v\nwant %s", name(about), err, text)
	}
}

// Contains wants a text to have a part.
func Contains(t T, text, part string, about ...any) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%s\n got %s\nwant %s in it", name(about), text, part)
	}
}

// NoDiff wants cmp.Diff(want, got) to have found nothing.
func NoDiff(t T, diff string, about ...any) {
	t.Helper()
	if diff != "" {
		t.Errorf("%s(-want +got)\n%s", name(about), diff)
	}
}

func name(about []any) string {
	if len(about) == 0 {
		return ""
	}
	return strings.TrimSuffix(fmt.Sprintln(about...), "\n") + ": "
}
