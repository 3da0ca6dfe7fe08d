package agent

import (
	"net/http"
	"testing"
)

func TestServerHasLimits(t *testing.T) {
	s := newServer(http.NotFoundHandler())
	for name, limit := range map[string]int64{"ReadTimeout": int64(s.ReadTimeout),
		"WriteTimeout": int64(s.WriteTimeout), "IdleTimeout": int64(s.IdleTimeout),
		"MaxHeaderBytes": int64(s.MaxHeaderBytes)} {
		if limit <= 0 {
			t.Errorf("no %s", name)
		}
	}
}
