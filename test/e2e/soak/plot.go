package soak

import (
	"fmt"
	"image/color"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Table writes the verdicts as a table.
func Table(w io.Writer, verdicts []Verdict) error {
	tab := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tab, "SERIES\tWHERE\tFIRST\tLAST\tMAX\tUNIT\tVERDICT")
	for _, v := range verdicts {
		verdict := "ok"
		switch {
		case v.Open:
			verdict = "too few samples"
		case !v.OK:
			verdict = "GROWS"
		}
		fmt.Fprintf(tab, "%s\t%s\t%.4g\t%.4g\t%.4g\t%s\t%s\n", v.Series.Name, v.Where, v.shown(v.First),
			v.shown(v.Last), v.shown(v.max()), v.Unit, verdict)
	}
	return tab.Flush()
}

// colors are those of the lines, by the order of the nodes.
var colors = []color.Color{color.RGBA{R: 0, G: 90, B: 180, A: 255}, color.RGBA{R: 215, G: 95, A: 255},
	color.RGBA{G: 140, B: 80, A: 255}, color.RGBA{R: 140, B: 140, A: 255}}

// A Picture is a set of plots, each of the series with one name.
type Picture struct {
	File  string
	Names []string
}

// Pictures are the pictures of a soak.
var Pictures = []Picture{
	{"soak-agent.svg", []string{"agent_rss_bytes", "agent_heap_bytes", "agent_goroutines", "agent_fds",
		"agent_cpu_percent", "held"}},
	{"soak-manager.svg", []string{"manager_rss_bytes", "manager_heap_bytes", "manager_goroutines", "manager_fds",
		"manager_cpu_percent", "ipreservations"}},
	{"soak-files.svg", []string{"store_bytes", "journal_entries", "state_inodes", "run_inodes", "hostlocal_inodes",
		"bound"}},
	{"soak-api.svg", []string{"events", "etcd_bytes", "pods"}},
}

const columns = 3

// Draw writes a picture as SVG. Series without samples are left out.
func (p Picture) Draw(path string, all []Series) error {
	rows := (len(p.Names) + columns - 1) / columns
	tiles := make([][]*plot.Plot, rows)
	for i, name := range p.Names {
		one, err := plotOf(name, all)
		if err != nil {
			return err
		}
		tiles[i/columns] = append(tiles[i/columns], one)
	}
	for i := range tiles {
		for len(tiles[i]) < columns {
			tiles[i] = append(tiles[i], nil)
		}
	}
	canvas := vgsvg.New(27*vg.Centimeter, vg.Length(rows)*6*vg.Centimeter)
	areas := plot.Align(tiles, draw.Tiles{Rows: rows, Cols: columns, PadX: vg.Centimeter / 2, PadY: vg.Centimeter / 2},
		draw.New(canvas))
	for i := range tiles {
		for j, one := range tiles[i] {
			if one != nil {
				one.Draw(areas[i][j])
			}
		}
	}
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(file); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

// plotOf plots the series of one name.
func plotOf(name string, all []Series) (*plot.Plot, error) {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	p := plot.New()
	p.Legend.TextStyle.Font.Size, p.Legend.ThumbnailWidth = vg.Points(9), vg.Points(12)
	rule := Rule{}
	if i := rank(name); i >= 0 {
		rule = Rules[i]
	}
	p.Title.Text = name
	if rule.Unit != "" {
		p.Title.Text += ", " + rule.Unit
	}
	p.X.Label.Text = "minutes"
	p.Y.Min = 0
	p.Legend.Top = false
	lines := 0
	for _, s := range all {
		if s.Name != name {
			continue
		}
		line, err := plotter.NewLine(s.thinned(rule))
		if err != nil {
			return nil, fmt.Errorf("%s of %s: %w", name, s.Where, err)
		}
		line.Color = colors[lines%len(colors)]
		lines++
		p.Add(line)
		p.Legend.Add(s.Where, line)
	}
	p.Y.Min = 0
	return p, nil
}

// most is how many points a line has at most, so that the pictures are small.
const most = 160

// thinned returns at most as many points, each the median of those that it stands for.
func (p Points) thinned(rule Rule) plotter.XYs {
	length := p[len(p)-1].At + 1
	step := max(length/most, time.Second)
	var points plotter.XYs
	for from := time.Duration(0); from < length; from += step {
		if value, n := p.median(from, from+step); n > 0 {
			points = append(points, plotter.XY{X: from.Minutes(), Y: rule.shown(value)})
		}
	}
	return points
}
