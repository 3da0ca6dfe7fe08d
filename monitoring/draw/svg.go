package main

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"
	"time"
)

const (
	width    = 1200 // of the picture, in pixels
	unit     = 34   // the height of a row of Grafana's grid
	margin   = 4    // around a panel
	headline = 40   // above the panels
)

// palette has the colours of lines, in Grafana's order.
var palette = []string{"#56a64b", "#f2cc0c", "#3274d9", "#ff780a", "#e02f44", "#a352cc", "#37872d", "#8ab8ff",
	"#b3a2c7", "#6e6e6e"}

// colours are those of thresholds.
var colours = map[string]string{"green": "#56a64b", "orange": "#ff9830", "red": "#e02f44"}

// svg returns the picture.
func (d dashboard) svg(r recording) string {
	height := headline
	for _, p := range d.Panels {
		height = max(height, headline+(p.GridPos.Y+p.GridPos.H)*unit)
	}
	var w strings.Builder
	fmt.Fprintf(&w, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\">\n",
		width, height)
	fmt.Fprintf(&w, "<rect width=\"%d\" height=\"%d\" fill=\"#f4f5f5\"/>\n", width, height)
	label(&w, 8, 25, 18, "", "#24292e", d.Title)
	label(&w, width-8, 25, 12, "end", "#6e6e6e", fmt.Sprintf("%s to %s UTC, %d programs, scraped every %s",
		r.start.UTC().Format("2006-01-02 15:04"), r.end.UTC().Format("15:04"), r.instances, r.interval))
	for _, p := range d.Panels {
		b := box{p.GridPos.X*width/24 + margin, headline + p.GridPos.Y*unit + margin,
			p.GridPos.W*width/24 - 2*margin, p.GridPos.H*unit - 2*margin}
		if p.Type == "stat" {
			p.stat(&w, b)
		} else {
			p.timeseries(&w, b, r)
		}
	}
	w.WriteString("</svg>\n")
	return w.String()
}

type box struct{ x, y, w, h int }

func (b box) draw(w *strings.Builder, fill string) {
	fmt.Fprintf(w, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\" stroke=\"#dce1e6\"/>\n",
		b.x, b.y, b.w, b.h, fill)
}

func label(w *strings.Builder, x, y, size int, anchor, fill, text string) {
	if anchor == "" {
		anchor = "start"
	}
	fmt.Fprintf(w, "<text x=\"%d\" y=\"%d\" font-size=\"%d\" text-anchor=\"%s\" fill=\"%s\">%s</text>\n",
		x, y, size, anchor, fill, html.EscapeString(text))
}

// stat draws the last value on the colour of its threshold.
func (p panel) stat(w *strings.Builder, b box) {
	text, fill := "No data", "#ffffff"
	if len(p.series) > 0 {
		if points := p.series[0].points(); len(points) > 0 {
			last := points[len(points)-1].F
			text = p.format(last)
			for _, step := range p.FieldConfig.Defaults.Thresholds.Steps {
				if step.Value == nil || last >= *step.Value {
					fill = colours[step.Color]
				}
			}
		}
	}
	b.draw(w, fill)
	label(w, b.x+8, b.y+18, 12, "", "#24292e", p.Title)
	label(w, b.x+b.w/2, b.y+b.h/2+24, 34, "middle", "#24292e", text)
}

// timeseries draws lines over time.
func (p panel) timeseries(w *strings.Builder, b box, r recording) {
	b.draw(w, "#ffffff")
	label(w, b.x+8, b.y+18, 12, "", "#24292e", p.Title)
	plot := box{b.x + 56, b.y + 30, b.w - 68, b.h - 74}
	top := 0.0
	for _, s := range p.series {
		for _, point := range s.points() {
			top = max(top, point.F)
		}
	}
	top = niceTop(top)
	for i := range 5 {
		y := plot.y + plot.h - i*plot.h/4
		fmt.Fprintf(w, "<path d=\"M%d %dh%d\" stroke=\"#e9edf2\"/>\n", plot.x, y, plot.w)
		label(w, plot.x-6, y+4, 10, "end", "#6e6e6e", p.format(top*float64(i)/4))
	}
	span := r.end.Sub(r.start)
	for i := range 4 {
		at := r.start.Add(span * time.Duration(i) / 3)
		label(w, plot.x+i*plot.w/3, plot.y+plot.h+14, 10, "middle", "#6e6e6e", at.UTC().Format("15:04"))
	}
	x, line := b.x+8, 0
	for i, s := range p.series {
		colour := palette[i%len(palette)]
		gap := int64(2*span/steps/time.Millisecond) + 1
		var path strings.Builder
		last := int64(math.MinInt64)
		for _, point := range s.points() {
			command := "L"
			if point.T-last > gap || path.Len() == 0 {
				command = "M"
			}
			last = point.T
			fmt.Fprintf(&path, "%s%.1f %.1f", command,
				float64(plot.x)+float64(point.T-r.start.UnixMilli())/float64(span.Milliseconds())*float64(plot.w),
				float64(plot.y+plot.h)-point.F/top*float64(plot.h))
		}
		fmt.Fprintf(w, "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\"/>\n", &path, colour)
		if length := 20 + 6*len(s.name); x+length > b.x+b.w && x > b.x+8 {
			x, line = b.x+8, line+1
		}
		if line < 2 {
			y := b.y + b.h - 22 + 14*line
			fmt.Fprintf(w, "<rect x=\"%d\" y=\"%d\" width=\"10\" height=\"3\" fill=\"%s\"/>\n", x, y-4, colour)
			label(w, x+14, y, 10, "", "#24292e", s.name)
		}
		x += 20 + 6*len(s.name)
	}
	if len(p.series) == 0 {
		label(w, plot.x+plot.w/2, plot.y+plot.h/2, 13, "middle", "#6e6e6e", "No data")
	}
}

// niceTop returns the upper end of an axis: 1, 2, 4 or 8 times a power of ten, at least top.
func niceTop(top float64) float64 {
	if top <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(top)))
	for _, factor := range []float64{1, 2, 4, 8} {
		if factor*power >= top {
			return factor * power
		}
	}
	return 10 * power
}

// format returns a value in the unit of the panel.
func (p panel) format(v float64) string {
	switch p.FieldConfig.Defaults.Unit {
	case "percentunit":
		return number(100*v) + " %"
	case "ops":
		return number(v) + " /s"
	case "s":
		if v < 1 {
			return number(1000*v) + " ms"
		}
		return number(v) + " s"
	}
	return number(v)
}

// number returns a value with three digits at most.
func number(v float64) string {
	if v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
