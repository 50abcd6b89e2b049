package page_test

import (
	"bytes"
	"encoding/xml"
	"errors"
	"html"
	"io"
	"regexp"
	"strings"
	"testing"

	"pdlink/bridge/cost"
	"pdlink/bridge/cost/page"
)

func report(t *testing.T, e cost.Engines) *cost.Report {
	t.Helper()
	k, _ := cost.KnownEngines("deepseek-v4-flash")
	r := &cost.Report{
		Model: "DeepSeek-V4-Flash", BytesPerToken: 10_000, BlockTokens: 2048, Layers: 43, Chunk: 8192, Store: "durable", Repeats: 1, Case: "synthetic",
		Missing: []cost.Missing{{Link: "rdma", Why: "no <card> & no 'port'"}},
	}
	if len(e.Native) > 0 {
		r.Engines.Source, r.Engines.Origins = k.Source, k.Origins
	}
	var list []cost.Measured
	for i, name := range []string{"mem", "unix", "tcp", "tcp+tls"} {
		each := 1e-5 * float64(i+1)
		run := func(n int) cost.Run {
			return cost.Run{Tokens: n, Blocks: n / 2048, Bytes: uint64(n) * 10_000, Seconds: 0.01 + each*float64(n), Tail: 0.04, SenderCPU: 1, ReceiverCPU: 2, Busy: map[string]float64{"write": 0.1, "wire in": 0.2}}
		}
		list = append(list, cost.Measured{Link: name, Processes: 2, Runs: []cost.Run{run(6144), run(24_576)}})
	}
	if err := cost.Make(r, e, list, cost.Lengths()); err != nil {
		t.Fatal(err)
	}
	return r
}

func write(t *testing.T, r *cost.Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := page.Write(&b, r); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestPage(t *testing.T) {
	k, _ := cost.KnownEngines("deepseek-v4-flash")
	r := report(t, k.Engines)
	o := r.Engines.Origins
	r.Engines.Origins = cost.Origins{Prefill: cost.Elsewhere, Native: cost.Given, Cached: cost.Computed}
	mixed := write(t, r)
	r.Engines.Origins = o
	if !strings.Contains(mixed, "Grey is the decoder's time by itself (given), blue the prefill engine's (published), green the decoder's with the blocks (computed), orange the link's (measured)") {
		t.Error("it does not say which times are from where")
	}
	text := write(t, r)
	for _, want := range []string{
		html.EscapeString(r.Headline), html.EscapeString(r.EnginesText()), "not measured here, but published by pd-bridge", "sealed TCP", "memory (no link at all)", "no &lt;card&gt; &amp; no &#39;port&#39;", "What a faster cable would buy", "The published table",
		"From which length it pays", "Joules cannot be read on this host", "bridging is as fast as the decoder alone over a link of", `class="usual"`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q", want)
		}
	}
	if n := strings.Count(text, "&middot; pays from <b>~2,"); n != 4 {
		t.Errorf("%d break-evens beside the bars of four links", n)
	}
	if !strings.Contains(text, "700,000 tokens (28 times as long)") || !strings.Contains(text, "<td>~~") {
		t.Error("it does not say what is far from all that was measured")
	}
	for _, a := range r.Assumptions {
		if !strings.Contains(html.UnescapeString(text), a.What) {
			t.Errorf("it lacks the assumption %q", a.What)
		}
	}
	if n := strings.Count(text, "<svg "); n != 2 {
		t.Errorf("%d plots", n)
	}
	for _, svg := range regexp.MustCompile(`(?s)<svg .*?</svg>`).FindAllString(text, -1) {
		d := xml.NewDecoder(strings.NewReader(svg))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("plot: %v", err)
			}
		}
		if !strings.Contains(svg, "tokens of the prompt") || strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") {
			t.Errorf("%.300s", svg)
		}
	}
}

// TestPageOfLittle: of a short prompt, of one run, and of what a file may say, there is a
// picture all the same.
func TestPageOfLittle(t *testing.T) {
	make1 := func(seconds float64, lengths ...int) *cost.Report {
		r := &cost.Report{BytesPerToken: 10_000, BlockTokens: 64, Layers: 43, Chunk: 8192}
		m := cost.Measured{Link: "tcp", Processes: 2}
		for _, n := range lengths {
			m.Runs = append(m.Runs, cost.Run{Tokens: n, Blocks: 1, Bytes: 640_000, Seconds: seconds})
		}
		if err := cost.Make(r, cost.Engines{}, []cost.Measured{m}, cost.Lengths()); err != nil {
			t.Fatal(err)
		}
		return r
	}
	short := write(t, make1(0.01, 64))
	if !strings.Contains(short, "stroke-dasharray") || !strings.Contains(short, ">500<") || strings.Contains(short, "0.5K") {
		t.Error("no line of a short prompt, or its lengths are not marked")
	}
	level := make1(0.01, 64, 128)
	dot := make1(0.01, 64)
	dot.Links[0].Line, dot.Links[0].MsPerToken = cost.FitReport{}, 0
	none := make1(0.01, 64)
	none.Links[0] = cost.LinkReport{Link: "tcp"}
	for name, r := range map[string]*cost.Report{"as long of any length": level, "a dot": dot, "nothing": none} {
		text := write(t, r)
		if svg := text[max(0, strings.Index(text, "<svg ")):]; strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") || !strings.Contains(svg, "unpaced") {
			t.Errorf("%s: %.300s", name, svg)
		}
	}
}

// TestPageNeedsNothing: no script, and nothing from elsewhere.
func TestPageNeedsNothing(t *testing.T) {
	k, _ := cost.KnownEngines("deepseek-v4-flash")
	text := write(t, report(t, k.Engines))
	text = regexp.MustCompile(`xmlns(:xlink)?="[^"]*"`).ReplaceAllString(text, "")
	if m := regexp.MustCompile(`(?i)<script|<link|<img|<iframe|@import|url\(|https?://|\son[a-z]+=`).FindString(text); m != "" {
		t.Errorf("it has %q", m)
	}
}

func TestPageWithoutEngines(t *testing.T) {
	text := write(t, report(t, cost.Engines{}))
	for _, not := range []string{"From which length it pays", "The published table", "Where the time goes", "NaN", "never"} {
		if strings.Contains(text, not) {
			t.Errorf("it has %q", not)
		}
	}
	for _, want := range []string{"From which length it would pay", "assumed and not measured", "decoder reads 400 tokens/s, prefill 2,000 tokens/s", "bridging would pay from"} {
		if !strings.Contains(text, want) {
			t.Errorf("it lacks %q", want)
		}
	}
}

// TestReportOfSomebodyElse: what a file says is text in the page, and nothing else.
func TestReportOfSomebodyElse(t *testing.T) {
	r := report(t, cost.Engines{})
	r.Headline, r.Model, r.Host = "<script>alert(1)</script>", "<b>x", "\"><script>"
	r.Assumptions[0].Source = "<img src=x>"
	if text := write(t, r); strings.Contains(text, "<script>") || strings.Contains(text, "<b>x") || strings.Contains(text, "<img") {
		t.Error("it is not escaped")
	}
	r.Links[0].Link = "</text><script>"
	if err := page.Write(io.Discard, r); !errors.Is(err, cost.ErrReport) {
		t.Errorf("an unknown link: %v", err)
	}
	if err := page.Write(io.Discard, &cost.Report{}); !errors.Is(err, cost.ErrReport) {
		t.Errorf("no link: %v", err)
	}
}
