// Draw evaluates the queries of a Grafana dashboard over recorded metrics, with Prometheus' own
// engine, and draws the panels as a picture. It knows what dashboard.json uses of Grafana: panels
// of the types stat and timeseries, thresholds, legends and a few units. See scripts/dashboard,
// which also records the metrics.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb"
)

func main() {
	samples := flag.String("samples", "", "`directory` with the recorded metrics")
	dashboard := flag.String("dashboard", "dashboard.json", "the dashboard's `file`")
	out := flag.String("o", "dashboard.svg", "the picture's `file`")
	flag.Parse()
	if err := run(context.Background(), *samples, *dashboard, *out); err != nil {
		fmt.Fprintln(os.Stderr, "draw:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, samples, file, out string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var board dashboard
	if err := json.Unmarshal(b, &board); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	dir, err := os.MkdirTemp("", "draw")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	db, err := tsdb.Open(dir, promslog.NewNopLogger(), nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return err
	}
	defer db.Close()
	run, err := load(ctx, db, samples)
	if err != nil {
		return err
	}
	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e7, Timeout: time.Minute})
	defer engine.Close()
	for i := range board.Panels {
		if err := run.evaluate(ctx, engine, db, &board.Panels[i]); err != nil {
			return fmt.Errorf("panel %s: %w", board.Panels[i].Title, err)
		}
	}
	return os.WriteFile(out, []byte(board.svg(run)), 0o644)
}

// dashboard is what is read of a Grafana dashboard.
type dashboard struct {
	Title  string
	Panels []panel
}

type panel struct {
	Type, Title string
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct{ Expr, LegendFormat string }
	FieldConfig struct {
		Defaults struct {
			Unit       string
			Thresholds struct {
				Steps []struct {
					Color string
					Value *float64
				}
			}
		}
	}

	series []series // set by evaluate
}

// series is a line of a panel.
type series struct {
	name   string
	values promql.Matrix // one series
}

// recording is what was recorded: the times of the first and last scrape, and how far scrapes are
// apart.
type recording struct {
	start, end time.Time
	interval   time.Duration
	instances  int // number of programs that were scraped
}

// load writes the recorded metrics into the database. They are in files
// <samples>/<Unix time>/<job>,<instance>.
func load(ctx context.Context, db *tsdb.DB, samples string) (recording, error) {
	var r recording
	dirs, err := os.ReadDir(samples)
	if err != nil {
		return r, err
	}
	if len(dirs) < 2 {
		return r, fmt.Errorf("%s has %d scrapes; want at least 2", samples, len(dirs))
	}
	instances := map[string]bool{}
	for _, d := range dirs {
		seconds, err := strconv.ParseInt(d.Name(), 10, 64)
		if err != nil {
			return r, fmt.Errorf("%s is not a Unix time", filepath.Join(samples, d.Name()))
		}
		files, err := os.ReadDir(filepath.Join(samples, d.Name()))
		if err != nil {
			return r, err
		}
		for _, f := range files {
			path := filepath.Join(samples, d.Name(), f.Name())
			job, instance, ok := strings.Cut(f.Name(), ",")
			if !ok {
				return r, fmt.Errorf("%s: want <job>,<instance>", path)
			}
			instances[f.Name()] = true
			if err := scrape(ctx, db, path, job, instance, time.Unix(seconds, 0)); err != nil {
				return r, fmt.Errorf("%s: %w", path, err)
			}
		}
		if r.start.IsZero() {
			r.start = time.Unix(seconds, 0)
		}
		r.end = time.Unix(seconds, 0)
	}
	r.instances = len(instances)
	r.interval = (r.end.Sub(r.start) / time.Duration(len(dirs)-1)).Round(time.Second)
	if r.interval <= 0 {
		return r, fmt.Errorf("the scrapes in %s are not ordered by time", samples)
	}
	return r, nil
}

// scrape adds the samples of one file, as Prometheus does with a target of that job and instance.
func scrape(ctx context.Context, db *tsdb.DB, path, job, instance string, at time.Time) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	app := db.Appender(ctx)
	p := textparse.NewPromParser(b, labels.NewSymbolTable(), false)
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return app.Commit()
		}
		if err != nil {
			return errors.Join(err, app.Rollback())
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, value := p.Series()
		var l labels.Labels
		p.Labels(&l)
		l = labels.NewBuilder(l).Set("job", job).Set("instance", instance).Labels()
		if _, err := app.Append(0, l, at.UnixMilli(), value); err != nil {
			return errors.Join(err, app.Rollback())
		}
	}
}

// steps is the number of points of a line.
const steps = 240

// evaluate runs the queries of a panel.
func (r recording) evaluate(ctx context.Context, engine *promql.Engine, db *tsdb.DB, p *panel) error {
	step := max(r.end.Sub(r.start)/steps, time.Second)
	// Grafana's rate interval is at least four times that of scrapes.
	variables := strings.NewReplacer("$__rate_interval", (4 * r.interval).String(), "$network", ".*")
	for _, t := range p.Targets {
		expr := variables.Replace(t.Expr)
		q, err := engine.NewRangeQuery(ctx, db, nil, expr, r.start, r.end, step)
		if err != nil {
			return err
		}
		result := q.Exec(ctx)
		matrix, err := result.Matrix()
		if err != nil {
			return fmt.Errorf("%s: %w", expr, err)
		}
		slices.SortFunc(matrix, func(a, b promql.Series) int { return labels.Compare(a.Metric, b.Metric) })
		for _, s := range matrix {
			name := cmp.Or(legend(t.LegendFormat, s.Metric), p.Title)
			// The points belong to the query, which reuses them.
			p.series = append(p.series, series{name, promql.Matrix{{Floats: slices.Clone(s.Floats)}}})
		}
		q.Close()
	}
	return nil
}

var placeholder = regexp.MustCompile(`\{\{ *([a-z_]+) *\}\}`)

// legend replaces the labels in a legend's format.
func legend(format string, l labels.Labels) string {
	return placeholder.ReplaceAllStringFunc(format, func(s string) string {
		return l.Get(placeholder.FindStringSubmatch(s)[1])
	})
}

// points returns the points of a line that are numbers.
func (s series) points() (out []promql.FPoint) {
	for _, p := range s.values[0].Floats {
		if !math.IsNaN(p.F) && !math.IsInf(p.F, 0) {
			out = append(out, p)
		}
	}
	return out
}
