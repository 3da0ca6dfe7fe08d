package costs

import (
	"bytes"
	_ "embed"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"gonum.org/v1/plot/plotter"

	"github.com/leasehold-cni/leasehold/test/e2e/draw"
)

// target is the number of nodes that is asked about.
const target = 5000

//go:embed page.md.tmpl
var page string

// A series is the runs of one commit, by their numbers of nodes.
type series struct {
	Commit, Subject string
	Runs            []Run
	Managers        []Run // in which only the manager was measured, by their numbers of reservations
}

// Accidents reports whether an accident was measured in one of the runs.
func (s series) Accidents() bool {
	return slices.ContainsFunc(s.Runs, func(r Run) bool { return len(r.Accidents) > 0 })
}

// bySize returns the series of the runs. The commit with the most runs comes first, then the last
// measured one: what a commit is compared with is measured after it, and less of it.
func bySize(runs []Run) (all []series) {
	slices.SortStableFunc(runs, func(a, b Run) int { return b.At.Compare(a.At) })
	for _, r := range runs {
		i := slices.IndexFunc(all, func(s series) bool { return s.Commit == r.Commit })
		if i < 0 {
			i, all = len(all), append(all, series{Commit: r.Commit, Subject: r.Subject})
		}
		if len(r.Windows) == 0 {
			all[i].Managers = append(all[i].Managers, r)
		} else {
			all[i].Runs = append(all[i].Runs, r)
		}
	}
	for _, s := range all {
		slices.SortFunc(s.Runs, func(a, b Run) int { return a.Nodes - b.Nodes })
		slices.SortFunc(s.Managers, func(a, b Run) int { return a.Reservations - b.Reservations })
	}
	size := func(s series) int { return len(s.Runs) + len(s.Managers) }
	slices.SortStableFunc(all, func(a, b series) int { return size(b) - size(a) })
	return all
}

// line returns the line of a figure over the numbers of nodes.
func (s series) line(of func(Run) float64) fit {
	var x, y []float64
	for _, r := range s.Runs {
		x, y = append(x, float64(r.Nodes)), append(y, of(r))
	}
	return fitted(x, y)
}

// net is the API server's processor time per recreation of a retained pod in milliseconds.
func net(r Run) float64 {
	_, net := r.processor(Retained, apiServer)
	return median(net)
}

// Page returns docs/scale.md.
func Page(runs []Run) (string, error) {
	t, err := template.New("page").Funcs(template.FuncMap{
		"processor": func(r Run) string {
			plainAll, plain := r.processor(Plain, apiServer)
			all, net := r.processor(Retained, apiServer)
			return fmt.Sprintf("%.1f | %.1f | **%.1f** (%.1f to %.1f) | %.1f | %.1f, %.1f", r.share(Idle, apiServer),
				median(plain), median(net), net[0], net[len(net)-1], median(net)-median(plain),
				median(plainAll), median(all))
		},
		"share": func(r Run) string { return fmt.Sprintf("%.0f", r.share(Retained, apiServer)) },
		"machine": func(r Run) string {
			return fmt.Sprintf("%.1f to %.1f | %.0f to %.0f %%", slices.Min(r.Load), slices.Max(r.Load),
				slices.Min(r.Pressure), slices.Max(r.Pressure))
		},
		"total":  func(r Run) string { return fmt.Sprintf("%.1f", r.total()) },
		"writes": func(r Run) string { return fmt.Sprintf("%.1f", r.writes()) },
		"requests": func(r Run) string {
			var list []string
			for _, c := range r.named() {
				list = append(list, fmt.Sprintf("| `%s` | %.2f |", c.name, c.each))
			}
			return strings.Join(list, "\n")
		},
		"events": func(r Run) string {
			var list []string
			for _, c := range r.counts(events, 0.05) {
				list = append(list, fmt.Sprintf("%s %.1f", c.name, c.each))
			}
			return strings.Join(list, ", ")
		},
		"others": func(r Run) string {
			if !r.isNamed() {
				return fmt.Sprintf("%.2f | | ", r.idleRate())
			}
			var rates []string
			for _, kind := range []string{Idle, Plain, Retained} {
				rate, uncertainty := r.otherRate(kind)
				rates = append(rates, fmt.Sprintf("%.2f ± %.2f", rate, uncertainty))
			}
			return strings.Join(rates, " | ")
		},
		"manager": func(r Run) string {
			_, manager := r.processor(Retained, "leasehold-manager")
			_, other := r.processor(Retained, "leasehold-manager-1")
			return fmt.Sprintf("%s | %.1f | %.0f s", memory(r), median(manager)+median(other), r.Started.Seconds())
		},
		"alone": func(r Run) string { return fmt.Sprintf("%s | | %.0f s", memory(r), r.Started.Seconds()) },
		"admission": func(r Run) string {
			busy := ""
			if r.AdmissionBusy > 0 {
				busy = fmt.Sprintf("%.0f %%", r.AdmissionBusy)
			}
			return fmt.Sprintf("%s | %s | %d | %s", all(r.Admissions), all(r.Pings), r.AdmissionRate, busy)
		},
		"nominated": func(r Run) string {
			return fmt.Sprintf("%.1f %% | %s | %s | %d of %d", 100*r.Within5ms, both(r.Nominated), both(r.Running),
				len(r.Nominated), len(r.Running))
		},
		"accident": func(nodes int, a Accident) string {
			back := ""
			if a.Back >= 0 {
				back = fmt.Sprintf("%d s", a.Back)
			}
			recreated := ""
			if a.Recreated > 0 {
				recreated = fmt.Sprintf("%d, %d, %d", a.Recreated, a.Nominated, a.Failed)
			}
			far := ""
			if a.Name == "outage" && nodes < target {
				mean, peak := a.atTarget(nodes)
				far = fmt.Sprintf("*%.0f, %.0f*", mean, peak)
			}
			return fmt.Sprintf("%s | %.1f | %d | %.0f | %s | %d | %s | %s", a.About, a.Steady, a.Most(),
				max(0, float64(a.Most())-a.Steady), far, a.Rejected, back, recreated)
		},
		"accidents": func(all []series) bool { return slices.ContainsFunc(all, series.Accidents) },
		"fitted":    func(s series) string { return s.fitted() },
		"last":      func(r []Run) Run { return r[len(r)-1] },
		"date":      func(t time.Time) string { return t.Format("2006-01-02 15:04") },
	}).Parse(page)
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	err = t.Execute(&out, bySize(runs))
	return out.String(), err
}

// memory returns the memory of the replicas.
func memory(r Run) string {
	var list []string
	for _, m := range r.Managers {
		list = append(list, fmt.Sprintf("%d, %d, %d", m.Resting, m.Loaded, m.Peak))
	}
	return strings.Join(list, "; ")
}

func all(s Spread) string {
	if s == (Spread{}) {
		return ""
	}
	return ms(s.P50) + ", " + ms(s.P99) + ", " + ms(s.Max)
}

// both returns the median and the 99th percentile.
func both(sorted []time.Duration) string {
	return ms(percentile(sorted, 50)) + ", " + ms(percentile(sorted, 99))
}

func ms(d time.Duration) string { return fmt.Sprintf("%.1f ms", float64(d.Microseconds())/1000) }

// fitted describes the line through the runs, and what it gives for the target if that was not
// measured.
func (s series) fitted() string {
	if len(s.Runs) < 2 {
		return "one number of nodes is no line."
	}
	f := s.line(net)
	first, last := s.Runs[0], s.Runs[len(s.Runs)-1]
	text := fmt.Sprintf("%.1f ms + %.2f ms for each 1,000 nodes (residual %.1f ms)", f.at0, 1000*f.slope, f.residual)
	if len(s.Runs) == 2 {
		text = fmt.Sprintf("%.1f ms + %.2f ms for each 1,000 nodes (two points: no residual)", f.at0, 1000*f.slope)
	}
	text += fmt.Sprintf("; %d nodes are %.2f times %d", last.Nodes, net(last)/net(first), first.Nodes)
	if last.Nodes < target {
		text += fmt.Sprintf("; at %d nodes that gives *%.1f ms, %.2f times* (extrapolated)", target, f.at(target),
			f.at(target)/net(first))
	}
	return text + "."
}

// Draw writes the pictures of the page to a directory.
func Draw(dir string, runs []Run) error {
	all := bySize(runs)
	sizes := func(title string, of func(Run) float64) draw.Plot {
		p := draw.Plot{Title: title, X: "nodes"}
		for _, s := range all {
			line := draw.Line{Name: s.Commit, Marked: true}
			for _, r := range s.Runs {
				line.Points = append(line.Points, plotter.XY{X: float64(r.Nodes), Y: of(r)})
			}
			p.Lines = append(p.Lines, line)
		}
		return p
	}
	cost := sizes("API server, ms per recreation", net)
	for _, s := range all {
		if n := len(s.Runs); n > 1 && s.Runs[n-1].Nodes < target {
			f, from := s.line(net), float64(s.Runs[n-1].Nodes)
			cost.Lines = append(cost.Lines, draw.Line{Name: s.Commit + ", extrapolated", Dashed: true,
				Points: plotter.XYs{{X: from, Y: f.at(from)}, {X: target, Y: f.at(target)}}})
		}
	}
	err := draw.SVG(filepath.Join(dir, "scale.svg"), []draw.Plot{cost,
		sizes("API server while idle, %", func(r Run) float64 { return r.share(Idle, apiServer) }),
		sizes("leasehold's requests per recreation", Run.total),
		sizes("leasehold's requests per second, idle", Run.idleRate),
		memories(all),
		sizes("nominated, p99, ms", func(r Run) float64 { return percentile(r.Nominated, 99).Seconds() * 1000 }),
	})
	if err != nil {
		return err
	}
	return drawAccidents(dir, all)
}

// memories is the plot of the largest memory of a manager over the reservations.
func memories(all []series) draw.Plot {
	p := draw.Plot{Title: "manager's memory, MiB", X: "reservations"}
	for _, s := range all {
		line := draw.Line{Name: s.Commit, Marked: true}
		for _, r := range slices.Concat(s.Runs, s.Managers) {
			line.Points = append(line.Points, plotter.XY{X: float64(r.Reservations), Y: float64(r.Managers[0].Peak)})
		}
		p.Lines = append(p.Lines, line)
	}
	return p
}

func drawAccidents(dir string, all []series) error {
	var plots []draw.Plot
	for _, s := range all {
		if !s.Accidents() {
			continue
		}
		of := s.Runs[0]
		for _, r := range s.Runs { // those with the most nodes
			if len(r.Accidents) > 0 {
				of = r
			}
		}
		for _, a := range of.Accidents {
			p := draw.Plot{Title: fmt.Sprintf("%s: %s, %d nodes", a.Name, s.Commit, of.Nodes), X: "seconds"}
			for name, counts := range map[string][]int{"agents": a.Agents, "managers": a.Managers} {
				line := draw.Line{Name: name}
				for second, n := range counts {
					line.Points = append(line.Points, plotter.XY{X: float64(second), Y: float64(n)})
				}
				p.Lines = append(p.Lines, line)
			}
			slices.SortFunc(p.Lines, func(a, b draw.Line) int { return strings.Compare(a.Name, b.Name) })
			plots = append(plots, p)
		}
	}
	if len(plots) == 0 {
		return nil
	}
	return draw.SVG(filepath.Join(dir, "scale-accidents.svg"), plots)
}
