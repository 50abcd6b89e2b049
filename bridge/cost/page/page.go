package page

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"

	"pdlink/bridge/cost"
)

//go:embed page.html
var text string

// data is what the page's template is given.
type data struct {
	*cost.Report
	Usual      *cost.LinkReport
	At         int
	FirstToken template.HTML // empty: the engines are not known
	LinkAlone  template.HTML
	Parts      []bar
}

// bar is a row of parts, of a whole in seconds.
type bar struct {
	Name  string
	Whole float64
	Parts []part
	Pays  string // from which length on; empty: that is no question
}

type part struct {
	Name    string
	Class   string
	Seconds float64
	Percent float64 // of the longest bar
}

// Write writes the page of a report that cost.Make made, or that was read again.
func Write(w io.Writer, r *cost.Report) error {
	if len(r.Links) == 0 {
		return fmt.Errorf("%w: it has no link", cost.ErrReport)
	}
	for _, l := range r.Links {
		if cost.LinkName(l.Link) == l.Link {
			return fmt.Errorf("%w: link %.20q is not known", cost.ErrReport, l.Link)
		}
	}
	e := cost.Engines{Prefill: r.Engines.Prefill, Native: r.Engines.Native, Cached: r.Engines.Cached, Block: r.BlockTokens}
	d := data{Report: r, Usual: r.Usual(), At: r.At}
	var err error
	if len(e.Native) > 0 && len(e.Prefill) > 0 {
		if d.FirstToken, err = firstToken(r, e); err != nil {
			return err
		}
		d.Parts = bars(r, e)
	}
	if d.LinkAlone, err = linkAlone(r); err != nil {
		return err
	}
	t, err := template.New("page").Funcs(functions()).Parse(text)
	if err != nil {
		return fmt.Errorf("page: %w", err)
	}
	return t.Execute(w, d)
}

// bars are the parts of the time to the first token at At: the decoder alone and bridged
// over each link.
func bars(r *cost.Report, e cost.Engines) []bar {
	list := make([]bar, 0, 1+len(r.Links))
	native := e.Native.At(r.At)
	list = append(list, bar{"decoder alone", native, []part{{"decoder reads the prompt", "native", native, 0}}, ""})
	for i := range r.Links {
		l := &r.Links[i]
		t := e.Bridged(cost.Link{Fixed: l.Fixed, PerToken: l.MsPerToken / 1e3, Tail: l.Tail}, r.At)
		list = append(list, bar{cost.LinkName(l.Link), t.Total, []part{
			{"prefill", "prefill", t.Prefill, 0}, {"link", "link", t.Exposed + t.Tail, 0}, {"decoder, with the blocks", "decoder", t.Decoder, 0},
		}, r.EvenText(l)})
	}
	most := 0.0
	for _, b := range list {
		most = max(most, b.Whole)
	}
	for _, b := range list {
		for i := range b.Parts {
			b.Parts[i].Percent = 100 * b.Parts[i].Seconds / most
		}
	}
	return list
}

func functions() template.FuncMap {
	return template.FuncMap{
		"seconds": cost.Seconds, "ms": cost.Milliseconds, "number": cost.Number, "bytes": cost.Bytes, "link": cost.LinkName,
		"percent": func(v float64) string {
			if v > 0 && v < 0.005 {
				return "<1 %"
			}
			return fmt.Sprintf("%.0f %%", math.Round(100*v))
		},
		"width":  func(v float64) string { return fmt.Sprintf("%.2f", max(0, min(100, v))) },
		"shares": func(v float64) float64 { return 100 * v },
		"fixed":  func(v float64) string { return fmt.Sprintf("%.2f", v) },
		"times":  func(v *float64) string { return fmt.Sprintf("%.1f×", *v) },
		"over":   func(a, b float64) string { return fmt.Sprintf("%.2f×", a/b) },
		"percents": func(a, b float64) string {
			return fmt.Sprintf("%+.1f %%", 100*(a/b-1))
		},
		"whole": func(p *int) int { return *p },
		"value": func(p *float64) float64 { return *p },
		"mark": func(basis string) string {
			return map[string]string{cost.BasisExtrapolated: "~", cost.BasisInterpolated: "~", cost.BasisFar: "~~"}[basis]
		},
	}
}
