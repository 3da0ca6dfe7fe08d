// Package draw writes plots as SVG, several in one picture.
package draw

import (
	"fmt"
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// A Plot is one plot, whose Y axis begins at 0.
type Plot struct {
	Title string
	X     string // label of the X axis
	Lines []Line
}

// A Line is one line of a plot, with its name in the legend.
type Line struct {
	Name   string
	Points plotter.XYs
	// Marked is whether each point is shown, for lines of few points.
	Marked bool
	// Dashed is for what was not measured.
	Dashed bool
}

// colors are those of the lines, in their order.
var colors = []color.Color{color.RGBA{R: 0, G: 90, B: 180, A: 255}, color.RGBA{R: 215, G: 95, A: 255},
	color.RGBA{G: 140, B: 80, A: 255}, color.RGBA{R: 140, B: 140, A: 255}}

const columns = 3

// SVG writes plots to a file, three in a row.
func SVG(path string, plots []Plot) error {
	rows := (len(plots) + columns - 1) / columns
	tiles := make([][]*plot.Plot, rows)
	for i, p := range plots {
		one, err := p.plot()
		if err != nil {
			return fmt.Errorf("%s: %w", p.Title, err)
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

func (p Plot) plot() (*plot.Plot, error) {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	out := plot.New()
	out.Legend.TextStyle.Font.Size, out.Legend.ThumbnailWidth = vg.Points(9), vg.Points(12)
	out.Title.Text, out.X.Label.Text = p.Title, p.X
	out.Legend.Top = false
	for i, l := range p.Lines {
		line, points, err := plotter.NewLinePoints(l.Points)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.Name, err)
		}
		line.Color, points.Color = colors[i%len(colors)], colors[i%len(colors)]
		if l.Dashed {
			line.Dashes = []vg.Length{vg.Points(4), vg.Points(3)}
		}
		out.Add(line)
		if l.Marked {
			points.Shape = draw.CircleGlyph{}
			out.Add(points)
		}
		out.Legend.Add(l.Name, line)
	}
	out.Y.Min = 0
	return out, nil
}
