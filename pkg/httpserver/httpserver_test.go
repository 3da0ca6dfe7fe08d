package httpserver

import (
	"bytes"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"
)

func TestServerHasLimits(t *testing.T) {
	s := New(http.NotFoundHandler())
	for name, limit := range map[string]int64{"ReadTimeout": int64(s.ReadTimeout),
		"WriteTimeout": int64(s.WriteTimeout), "IdleTimeout": int64(s.IdleTimeout),
		"MaxHeaderBytes": int64(s.MaxHeaderBytes)} {
		if limit <= 0 {
			t.Errorf("no %s", name)
		}
	}
}

func TestErrorsAreLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		w := &rareLines{out: &out}
		for i, after := range []time.Duration{0, 0, logInterval - 1, 1, 1} {
			time.Sleep(after)
			fmt.Fprintln(w, i)
		}
		if out.String() != "0\n3\n" {
			t.Errorf("logged %q", &out)
		}
	})
}
