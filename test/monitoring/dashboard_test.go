package monitoring

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
)

type panel struct {
	ID          int
	Title       string
	Description string
	Targets     []struct{ Expr, RefID string }
}

// TestDashboard checks what Grafana would show as an error only when somebody looks: queries that
// Prometheus does not parse, and panels without a query.
func TestDashboard(t *testing.T) {
	b, err := os.ReadFile("../../daemonset/monitoring/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Title, UID string
		Panels     []panel
	}
	if err := json.Unmarshal(b, &dashboard); err != nil {
		t.Fatal(err)
	}
	if dashboard.Title == "" || dashboard.UID == "" || len(dashboard.Panels) == 0 {
		t.Fatalf("title %q, uid %q, %d panels", dashboard.Title, dashboard.UID, len(dashboard.Panels))
	}
	variables := strings.NewReplacer("$__rate_interval", "5m", "$network", ".*")
	promql := parser.NewParser(parser.Options{})
	for _, p := range dashboard.Panels {
		if p.Title == "" || p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("panel %d: title %q, description %q, %d queries", p.ID, p.Title, p.Description, len(p.Targets))
		}
		for _, target := range p.Targets {
			if _, err := promql.ParseExpr(variables.Replace(target.Expr)); err != nil {
				t.Errorf("%s: %s: %v", p.Title, target.Expr, err)
			}
		}
	}
}
