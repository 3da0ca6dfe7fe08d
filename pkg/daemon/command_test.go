package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

// traced prints its stack, as the errors of some libraries do.
type traced struct{ error }

func (e traced) Format(s fmt.State, _ rune) { fmt.Fprint(s, e.Error(), "\nmain.main\n\tmain.go:1") }

func TestErrorsAreLoggedWithoutStacks(t *testing.T) {
	for _, json := range []bool{false, true} {
		var out bytes.Buffer
		newLog(&out, slog.LevelInfo, json).Error("could not refresh", "error", traced{errors.New("the disk is full")})
		if got := out.String(); !strings.Contains(got, "the disk is full") || strings.Contains(got, "main.go") {
			t.Errorf("JSON %t: %s", json, got)
		}
	}
}
