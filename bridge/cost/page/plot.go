package page

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"math"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"pdlink/bridge/cost"
)

// The size of a plot on the page.
const (
	plotWidth  = 22 * vg.Centimeter
	plotHeight = 11 * vg.Centimeter
)

// A plot's range in tokens, where nothing shorter was measured, and how many points a curve
// has.
const (
	shortest = 1_000
	longest  = 1_000_000
	points   = 400
)

// colours are those of curves, told apart by people who do not see all colours too.
func colours() []color.RGBA {
	return []color.RGBA{
		{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xcc, 0x79, 0xa7, 0xff}, {0xe6, 0x9f, 0x00, 0xff},
	}
}

// curve is a line of a plot.
type curve struct {
	name  string
	color color.Color
	width vg.Length
	dash  []vg.Length
	of    func(tokens int) float64
}

// firstToken plots the time to the first token by the length of the prompt: the decoder
// alone, and bridged over the slowest and the fastest link, which no eye can tell apart
// where the links do not matter. Each of them is marked where it begins to pay.
func firstToken(r *cost.Report, e cost.Engines) (template.HTML, error) {
	bridged := ends(r)
	list := make([]curve, 0, 1+len(bridged))
	list = append(list, curve{"decoder alone", color.RGBA{0x55, 0x55, 0x55, 0xff}, vg.Points(2.5), nil, e.Native.At})
	for i, l := range bridged {
		link := cost.Link{Fixed: l.Fixed, PerToken: l.MsPerToken / 1e3, Tail: l.Tail}
		dash := []vg.Length(nil)
		if i > 0 {
			dash = []vg.Length{vg.Points(5), vg.Points(4)}
		}
		list = append(list, curve{"bridged over " + cost.LinkName(l.Link), colours()[i], vg.Points(2), dash,
			func(n int) float64 { return e.Bridged(link, n).Total }})
	}
	p := newPlot("tokens of the prompt", "seconds to the first token")
	if err := addCurves(p, list, shortest); err != nil {
		return "", err
	}
	for i, l := range bridged {
		if l.BreakEven == nil || *l.BreakEven < shortest {
			continue // there is nothing in the plot to mark
		}
		n := *l.BreakEven
		dot, err := plotter.NewScatter(plotter.XYs{{X: float64(n), Y: e.Native.At(n)}})
		if err != nil {
			return "", err
		}
		dot.GlyphStyle = draw.GlyphStyle{Color: colours()[i], Radius: vg.Points(5), Shape: draw.CircleGlyph{}}
		if i > 0 { // a ring around the other, where they are the same
			dot.Radius, dot.Shape = vg.Points(8), draw.RingGlyph{}
		}
		p.Add(dot)
		p.Legend.Add(fmt.Sprintf("%s pays from %s tokens on", cost.LinkName(l.Link), r.EvenText(&l)), dot)
	}
	return render(p, plotWidth, plotHeight)
}

// linkAlone plots what each link takes by itself: runs as dots, the line through them, and
// dashed where it goes on, as far as that says anything.
func linkAlone(r *cost.Report) (template.HTML, error) {
	p := newPlot("tokens of the prompt", "seconds on the link, unpaced")
	from := shortest
	for _, l := range r.Links {
		if l.Line.Shortest > 0 {
			from = min(from, l.Line.Shortest)
		}
	}
	for i, l := range r.Links {
		link := cost.Link{Fixed: l.Fixed, PerToken: l.MsPerToken / 1e3}
		within := func(least, most int) func(int) float64 {
			return func(n int) float64 {
				if n < least || n > most {
					return math.NaN()
				}
				return link.Stream(n)
			}
		}
		c, dash := colours()[i%len(colours())], []vg.Length{vg.Points(5), vg.Points(4)}
		err := addCurves(p, []curve{
			{"", c, vg.Points(1.5), dash, within(0, l.Line.Shortest)},
			{"", c, vg.Points(2), nil, within(l.Line.Shortest, l.Line.Longest)},
			{"", c, vg.Points(1.5), dash, within(l.Line.Longest, cost.Far*l.Line.Longest)},
		}, from)
		if err != nil {
			return "", err
		}
		var xy plotter.XYs
		for _, m := range l.Measurements {
			if !m.Paced && m.Tokens > 0 && m.Seconds > 0 {
				xy = append(xy, plotter.XY{X: float64(m.Tokens), Y: m.Seconds})
			}
		}
		if len(xy) == 0 {
			continue // a file may have none
		}
		dots, err := plotter.NewScatter(xy)
		if err != nil {
			return "", err
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: c, Radius: vg.Points(3), Shape: draw.CircleGlyph{}}
		p.Add(dots)
		p.Legend.Add(cost.LinkName(l.Link), dots)
	}
	return render(p, plotWidth, plotHeight)
}

// ends are the report's usual link first, then that which is furthest from it at At.
func ends(r *cost.Report) []cost.LinkReport {
	usual := r.Usual()
	at := func(l cost.LinkReport) float64 { return l.Fixed + l.MsPerToken/1e3*float64(r.At) + l.Tail }
	far := *usual
	for _, l := range r.Links {
		if math.Abs(at(l)-at(*usual)) > math.Abs(at(far)-at(*usual)) {
			far = l
		}
	}
	if far.Link == usual.Link {
		return []cost.LinkReport{*usual}
	}
	return []cost.LinkReport{*usual, far}
}

func newPlot(x, y string) *plot.Plot {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = x, y
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = decades{tokens}, decades{seconds}
	p.Legend.Top, p.Legend.Left = true, true
	p.Legend.Padding, p.Legend.XOffs = vg.Points(3), vg.Points(8)
	for _, s := range []*vg.Length{&p.X.Tick.Label.Font.Size, &p.Y.Tick.Label.Font.Size, &p.Legend.TextStyle.Font.Size, &p.X.Label.TextStyle.Font.Size, &p.Y.Label.TextStyle.Font.Size} {
		*s = vg.Points(11)
	}
	p.Legend.TextStyle.Font.Variant, p.X.Tick.Label.Font.Variant, p.Y.Tick.Label.Font.Variant = "Sans", "Sans", "Sans"
	p.X.Label.TextStyle.Font.Variant, p.Y.Label.TextStyle.Font.Variant = "Sans", "Sans"
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xdd}, color.Gray{0xdd}
	p.Add(grid)
	return p
}

// addCurves draws curves from a length on.
func addCurves(p *plot.Plot, list []curve, from int) error {
	for _, c := range list {
		var xy plotter.XYs
		for i := range points {
			n := int(math.Round(float64(from) * math.Pow(longest/float64(from), float64(i)/(points-1))))
			if v := c.of(n); v > 0 && !math.IsInf(v, 0) {
				xy = append(xy, plotter.XY{X: float64(n), Y: v})
			}
		}
		if len(xy) == 0 {
			continue
		}
		l, err := plotter.NewLine(xy)
		if err != nil {
			return fmt.Errorf("plot %s: %w", c.name, err)
		}
		l.Color, l.Width, l.Dashes = c.color, c.width, c.dash
		p.Add(l)
		if c.name != "" {
			p.Legend.Add(c.name, l)
		}
	}
	return nil
}

// decades marks 1, 2 and 5 of each power of ten.
type decades struct{ text func(float64) string }

// Ticks implements plot.Ticker.
func (d decades) Ticks(least, most float64) (ticks []plot.Tick) {
	for e := math.Floor(math.Log10(least)); e <= math.Log10(most); e++ {
		for _, m := range []float64{1, 2, 5} {
			if v := m * math.Pow(10, e); v >= least*(1-1e-9) && v <= most*(1+1e-9) {
				ticks = append(ticks, plot.Tick{Value: v, Label: d.text(v)})
			}
		}
	}
	return ticks
}

func tokens(v float64) string {
	switch {
	case v >= 1e6:
		return fmt.Sprintf("%gM", v/1e6)
	case v < 1e3:
		return fmt.Sprintf("%g", v)
	}
	return fmt.Sprintf("%gK", v/1e3)
}

func seconds(v float64) string {
	switch {
	case v < 1e-3:
		return fmt.Sprintf("%.3g µs", v*1e6)
	case v < 1:
		return fmt.Sprintf("%.3g ms", v*1e3)
	}
	return fmt.Sprintf("%.0f s", v)
}

// narrow is the largest part of its value that a range is too narrow to be drawn with.
const narrow = 1e-6

// widen makes a range that has logarithms of what an axis has, also of one value and of none.
func widen(a *plot.Axis) {
	switch {
	case !(a.Min > 0) || a.Max < a.Min || math.IsInf(a.Max, 0):
		a.Min, a.Max = 1, 10
	case a.Max <= a.Min*(1+narrow):
		a.Min, a.Max = max(a.Min/2, math.SmallestNonzeroFloat64), min(a.Max*2, math.MaxFloat64)
	}
}

// render is the plot as an element of a page.
func render(p *plot.Plot, w, h vg.Length) (template.HTML, error) {
	widen(&p.X)
	widen(&p.Y)
	c := vgsvg.New(w, h)
	p.Draw(draw.New(c))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", fmt.Errorf("plot: %w", err)
	}
	_, svg, ok := strings.Cut(b.String(), "<svg ")
	if !ok {
		return "", fmt.Errorf("plot: no picture was made")
	}
	// The file's own head has no place in a page. What is in the picture is made here: numbers,
	// and names that Write has checked.
	return template.HTML("<svg role=\"img\" " + svg), nil
}
