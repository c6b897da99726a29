//go:build unix

package storelab

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// A colour for each store, told apart also by those who see few colours
// (Okabe and Ito).
var storeColours = map[string]color.Color{
	"memory":     color.RGBA{0x88, 0x88, 0x88, 0xff},
	"SQLite":     color.RGBA{0xE6, 0x9F, 0x00, 0xff},
	"Redis":      color.RGBA{0xD5, 0x5E, 0x00, 0xff},
	"PostgreSQL": color.RGBA{0x00, 0x72, 0xB2, 0xff},
	"NATS":       color.RGBA{0x00, 0x9E, 0x73, 0xff},
	"FerretDB":   color.RGBA{0xCC, 0x79, 0xA7, 0xff},
}

// A panel is one part of the chart: rows of operations, in each a line per store
// from p50, a dot, to p99.
type panel struct {
	title      string
	ops        []string
	goroutines int
}

func chartPanels() []panel {
	var ops []string
	for _, op := range operations {
		ops = append(ops, op.name)
	}
	return []panel{
		{"calls of the store, 1 goroutine", ops, 1},
		{fmt.Sprintf("calls of the store, %d goroutines", manyCalls), ops, manyCalls},
		{"requests of clients, through the library", lifeOps, 0},
	}
}

// drawChart draws the figures into a file, whose extension says which format.
func drawChart(file string, figures []speedFigure) error {
	const width, height = 40 * vg.Centimeter, 19 * vg.Centimeter
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	canvas, err := draw.NewFormattedCanvas(width, height, filepath.Ext(file)[1:])
	if err != nil {
		return err
	}
	var plots []*plot.Plot
	for i, pn := range chartPanels() {
		plots = append(plots, drawPanel(pn, figures, i == 0))
	}
	page := draw.New(canvas)
	page.SetColor(color.White)
	page.Fill(page.Rectangle.Path())
	tiles := draw.Tiles{Rows: 1, Cols: len(plots), PadX: 6 * vg.Millimeter, PadTop: 3 * vg.Millimeter, PadBottom: 3 * vg.Millimeter, PadLeft: 3 * vg.Millimeter, PadRight: 5 * vg.Millimeter}
	for k, c := range plot.Align([][]*plot.Plot{plots}, tiles, page)[0] {
		plots[k].Draw(c)
	}
	var image bytes.Buffer
	if _, err := canvas.WriteTo(&image); err != nil {
		return err
	}
	// An SVG names its font, which few readers have.
	out := bytes.ReplaceAll(image.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif"))
	return os.WriteFile(file, out, 0o644)
}

func drawPanel(pn panel, figures []speedFigure, legend bool) *plot.Plot {
	p := plot.New()
	p.Title.Text = pn.title
	p.Title.TextStyle.Font.Size = 13
	p.Title.Padding = 3 * vg.Millimeter
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, decades{}
	p.X.Tick.Label.Font.Size = 9
	p.X.Label.Text = "dot: p50, end of the line: p99"
	p.Y.Tick.Label.Font.Size = 11
	p.Y.Tick.Length = 0
	p.Add(grid())
	stores := speedStores()
	rows := float64(len(stores) + 1) // one is left free between operations
	var names []plot.Tick
	for k, op := range pn.ops {
		top := -float64(k) * rows
		names = append(names, plot.Tick{Value: top - rows/2, Label: op})
		for n, s := range stores {
			i := slices.IndexFunc(figures, func(f speedFigure) bool {
				return f.store == s.name && f.op == op && f.goroutines == pn.goroutines && inChart(f)
			})
			if i < 0 {
				continue
			}
			line, dot := mark(figures[i], top-1-float64(n), storeColours[s.name])
			p.Add(line, dot)
		}
	}
	if legend {
		for _, s := range stores {
			line, dot := mark(speedFigure{}, 0, storeColours[s.name])
			p.Legend.Add(s.name, line, dot)
		}
	}
	p.Y.Tick.Marker = plot.ConstantTicks(names)
	// All panels are alike, so that what is on one height and in one column can be
	// compared. The store's have room for the legend below.
	p.Y.Min, p.Y.Max = -float64(len(lifeOps))*rows, 0
	p.X.Min, p.X.Max = chartRange(figures)
	if legend {
		p.Legend.TextStyle.Font.Size = 11
		p.Legend.Padding = 1.5 * vg.Millimeter
		p.Legend.YOffs = 3 * vg.Millimeter
	}
	return p
}

// inChart leaves out what would take half of the width: a map in memory is a
// hundred times as fast as any store.
func inChart(f speedFigure) bool { return f.store != "memory" || f.goroutines == 0 }

// chartRange is from one power of ten to another.
func chartRange(figures []speedFigure) (lo, hi float64) {
	lo, hi = 1e6, 1
	for _, f := range figures {
		if !inChart(f) {
			continue
		}
		lo, hi = min(lo, micros(f.p50)), max(hi, micros(f.p99))
	}
	return math.Pow(10, math.Floor(math.Log10(lo))), math.Pow(10, math.Ceil(math.Log10(hi)))
}

func mark(f speedFigure, y float64, c color.Color) (*plotter.Line, *plotter.Scatter) {
	from, to := micros(f.p50), micros(f.p99)
	line, err := plotter.NewLine(plotter.XYs{{X: from, Y: y}, {X: max(from, to), Y: y}})
	if err != nil {
		panic(err) // not a number: a bug here
	}
	line.Color, line.Width = c, vg.Millimeter
	dot, err := plotter.NewScatter(plotter.XYs{{X: from, Y: y}})
	if err != nil {
		panic(err)
	}
	dot.GlyphStyle = draw.GlyphStyle{Color: c, Radius: 1.5 * vg.Millimeter, Shape: draw.CircleGlyph{}}
	return line, dot
}

func micros(d time.Duration) float64 { return max(0.1, float64(d)/float64(time.Microsecond)) }

func grid() *plotter.Grid {
	g := plotter.NewGrid()
	g.Horizontal.Color = nil
	g.Vertical.Color = color.Gray{0xdd}
	return g
}

// decades puts a tick at every power of ten of microseconds.
type decades struct{}

func (decades) Ticks(lo, hi float64) (ticks []plot.Tick) {
	for v := 0.1; v <= hi*1.001; v *= 10 {
		if v >= lo*0.999 {
			ticks = append(ticks, plot.Tick{Value: v, Label: unitOf(v)})
		}
	}
	return ticks
}

func unitOf(micros float64) string {
	switch {
	case micros >= 1e6:
		return fmt.Sprintf("%.0f s", micros/1e6)
	case micros >= 1e3:
		return fmt.Sprintf("%.0f ms", micros/1e3)
	}
	return fmt.Sprintf("%.3g µs", micros)
}

// TestChart: the chart can be drawn, also where a store is missing.
func TestChart(t *testing.T) {
	var figures []speedFigure
	for i, s := range speedStores()[1:] {
		for _, pn := range chartPanels() {
			for k, op := range pn.ops {
				d := time.Duration(1+i*k) * 80 * time.Microsecond
				figures = append(figures, speedFigure{s.name, op, pn.goroutines, d, 7 * d})
			}
		}
	}
	for _, name := range []string{"stores.svg", "stores.png"} {
		file := filepath.Join(t.TempDir(), name)
		if dir := os.Getenv("STORELAB_CHART_DIR"); dir != "" {
			file = filepath.Join(dir, name)
		}
		if err := drawChart(file, figures); err != nil {
			t.Fatal(err)
		}
	}
}
