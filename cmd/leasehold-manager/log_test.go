package main

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// traced prints its stack, as the errors of some libraries do.
type traced struct{ error }

func (e traced) Format(s fmt.State, _ rune) { fmt.Fprint(s, e.Error(), "\nmain.main\n\tmain.go:1") }

func TestErrorsAreLoggedWithoutStacks(t *testing.T) {
	for _, json := range []bool{false, true} {
		var out bytes.Buffer
		logger(options{logTo: &out, logJSON: json}).Error(traced{errors.New("the disk is full")}, "could not refresh")
		if got := out.String(); !strings.Contains(got, "the disk is full") || strings.Contains(got, "main.go") {
			t.Errorf("JSON %t: %s", json, got)
		}
	}
}
