package facts

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Finding is one field in which two ends differ, or that one of them cannot tell.
type Finding struct {
	Field   string `json:"field"`
	Decoder string `json:"decoder"` // what the decoder says; "unknown"
	Engine  string `json:"engine"`  // what the prefill engine says
	Refuses bool   `json:"refuses"` // nothing may be read with this engine
	Differs bool   `json:"differs"` // both tell, and not the same
	Why     string `json:"why,omitempty"`
}

// String is the finding in one line.
func (f Finding) String() string {
	text := fmt.Sprintf("%s: %s at the decoder, %s at the engine", f.Field, f.Decoder, f.Engine)
	if f.Why != "" {
		text += " (" + f.Why + ")"
	}
	return text
}

// unknown is what a finding shows for an end that cannot tell.
const unknown = "unknown"

// Compare holds an engine's model against the decoder's and returns every
// difference, those that refuse first. Nil Facts tell nothing.
func Compare(decoder, engine *Facts) []Finding {
	c := comparison{d: decoder, e: engine}
	if c.d == nil {
		c.d = &Facts{Unknown: map[string]string{"": "it has a plug-in that does not tell: update pdlink-omlx"}}
	}
	if c.e == nil {
		c.e = &Facts{Unknown: map[string]string{"": "its connector does not tell: update pdlink-vllm"}}
	}
	c.geometry()
	c.ropes("rope", c.d.Rope, c.e.Rope, true)
	c.tensors()
	c.information()
	if c.d.Kind == KindDSV4 || c.e.Kind == KindDSV4 {
		c.projection()
	}
	slices.SortStableFunc(c.out, func(a, b Finding) int {
		return cmp.Or(boolFirst(a.Refuses, b.Refuses), boolFirst(a.Differs, b.Differs))
	})
	return c.out
}

func boolFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// Refusal are the findings that refuse, as one text; "" where there are none.
// allowUnknown leaves those out that are refused only since somebody cannot tell.
func Refusal(list []Finding, allowUnknown bool) string {
	var words []string
	more := 0
	for _, f := range list {
		switch {
		case !f.Refuses || allowUnknown && !f.Differs:
		case len(words) < shownFindings:
			words = append(words, f.String())
		default:
			more++
		}
	}
	if more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, "; ")
}

// comparison collects findings.
type comparison struct {
	d, e *Facts
	out  []Finding
}

// field compares two values of a field; "" is unknown. need says that it must be
// known, same whether the two are equal.
func (c *comparison) field(name, decoder, engine string, need, same bool) {
	f := Finding{Field: name, Decoder: decoder, Engine: engine, Refuses: true, Differs: true}
	switch {
	case decoder == "" && engine == "" && !need:
		return
	case decoder == "" || engine == "":
		f.Refuses, f.Differs = need, false
		f.Decoder, f.Engine = cmp.Or(decoder, unknown), cmp.Or(engine, unknown)
		f.Why = c.why(name, decoder == "", engine == "")
	case same:
		return
	}
	c.out = append(c.out, f)
}

// why is what the ends that do not tell a field say about it.
func (c *comparison) why(name string, decoder, engine bool) string {
	field, _, _ := strings.Cut(name, " ")
	var words []string
	for _, end := range []struct {
		silent bool
		name   string
		f      *Facts
	}{{decoder, "decoder", c.d}, {engine, "engine", c.e}} {
		if why := cmp.Or(end.f.Unknown[field], end.f.Unknown[""]); end.silent && why != "" {
			words = append(words, end.name+": "+clip(why))
		}
	}
	return strings.Join(words, "; ")
}

func clip(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxText)], "?") }

// equal is field for values that are equal as texts.
func (c *comparison) equal(name, decoder, engine string, need bool) {
	c.field(name, decoder, engine, need, decoder == engine)
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func (c *comparison) geometry() {
	kv, v4 := c.d.Kind == KindKV, c.d.Kind == KindDSV4
	c.equal("kind", c.d.Kind, c.e.Kind, true)
	c.equal("layers", number(c.d.Layers), number(c.e.Layers), true)
	c.equal("dtype", c.d.DType, c.e.DType, true)
	c.equal("kv_heads", number(c.d.KVHeads), number(c.e.KVHeads), kv)
	c.equal("head_dim", number(c.d.HeadDim), number(c.e.HeadDim), kv || v4)
	c.equal("hidden", number(c.d.Hidden), number(c.e.Hidden), false)
	c.equal("heads", number(c.d.Heads), number(c.e.Heads), false)
	c.equal("vocab", number(c.d.Vocab), number(c.e.Vocab), false)
	c.equal("window", number(c.d.Window), number(c.e.Window), v4)
	c.ratios(v4)
	eps := func(v float64) string {
		if v == 0 {
			return ""
		}
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	c.field("eps", eps(c.d.Eps), eps(c.e.Eps), false, math.Abs(c.d.Eps-c.e.Eps) <= epsShare*c.d.Eps)
}

// ratios names the first layer that differs: the whole list would not be read.
func (c *comparison) ratios(need bool) {
	text := func(r []int) string {
		if len(r) == 0 {
			return ""
		}
		return fmt.Sprintf("of %d layers", len(r))
	}
	if len(c.d.Ratios) != len(c.e.Ratios) || len(c.d.Ratios) == 0 {
		c.equal("ratios", text(c.d.Ratios), text(c.e.Ratios), need)
		return
	}
	for i, r := range c.d.Ratios {
		if o := c.e.Ratios[i]; o != r {
			c.field(fmt.Sprintf("ratios of layer %d", i), strconv.Itoa(r), strconv.Itoa(o), true, false)
			return
		}
	}
}

// ropes compares the rotations of layers that both tell.
func (c *comparison) ropes(name string, decoder, engine map[string]Rope, need bool) {
	both, more := 0, 0
	for _, layer := range slices.SortedFunc(maps.Keys(decoder), numeric) {
		d, e := decoder[layer], engine[layer]
		if _, there := engine[layer]; !there {
			continue
		}
		if d.common(&e) || d.form() != e.form() {
			both++
		}
		if one, other, ok := d.difference(&e); !ok {
			if more++; more == 1 {
				c.field(name+" of layer "+layer, one, other, true, false)
			}
		}
	}
	c.others(more, "layer")
	if both == 0 {
		one, other := known(len(decoder), "layer"), known(len(engine), "layer")
		if one != "" && other != "" { // of different layers, or at different positions
			c.out = append(c.out, Finding{Field: name, Decoder: one, Engine: other, Refuses: need, Why: "nothing of them is told at both ends"})
			return
		}
		c.field(name, one, other, need, true)
	}
}

// others says of the last finding that more like it differ: one is enough to be read.
func (c *comparison) others(all int, what string) {
	if all > 1 {
		c.out[len(c.out)-1].Why = known(all-1, what) + " more like this"
	}
}

func known(n int, what string) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func numeric(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }

// tensors compares the fingerprints that both tell.
func (c *comparison) tensors() {
	both, more := 0, 0
	for _, name := range slices.Sorted(maps.Keys(c.d.Tensors)) {
		d := c.d.Tensors[name]
		e, there := c.e.Tensors[name]
		if !there {
			continue
		}
		both++
		if !slices.Equal(d.Shape, e.Shape) || d.Hash != e.Hash {
			if more++; more == 1 {
				c.field("tensors "+name, d.text(), e.text(), true, false)
			}
		}
	}
	c.others(more, "tensor")
	if both == 0 {
		one, other := known(len(c.d.Tensors), "tensor"), known(len(c.e.Tensors), "tensor")
		if one != "" && other != "" {
			c.out = append(c.out, Finding{Field: "tensors", Decoder: one, Engine: other, Refuses: true, Why: "none of them has the same name at both ends"})
			return
		}
		c.field("tensors", one, other, true, true)
	}
}

func (t Tensor) text() string {
	text := fmt.Sprintf("%v %s", t.Shape, t.Hash)
	if len(t.First) > 0 {
		text += fmt.Sprintf(" beginning %.4g", t.First)
	}
	return text
}

// information compares what decides nothing.
func (c *comparison) information() {
	text := func(t *Text) string {
		if t == nil {
			return ""
		}
		return fmt.Sprintf("%d ids of the probe text, %s", t.Count, t.Hash)
	}
	for _, x := range [][3]string{{"text", text(c.d.Text), text(c.e.Text)}, {"template", c.d.Template, c.e.Template}} {
		if x[1] != "" && x[2] != "" && x[1] != x[2] { // who does not tell is not missed
			c.out = append(c.out, Finding{Field: x[0], Decoder: x[1], Engine: x[2], Differs: true, Why: "prompts travel as the decoder's ids, so this alone does no harm"})
		}
	}
}

// projection compares the weights that make DeepSeek-V4's blocks with the
// decoder's, and the rotation of the kernels with the decoder's.
func (c *comparison) projection() {
	var d, e Projection
	if c.d.Projection != nil {
		d = *c.d.Projection
	}
	if c.e.Projection != nil {
		e = *c.e.Projection
	}
	if len(d.Layers) == 0 || len(e.Layers) == 0 || len(d.Layers) != len(e.Layers) {
		c.equal("projection", known(len(d.Layers), "layer"), known(len(e.Layers), "layer"), false)
	} else {
		for i, hash := range d.Layers {
			if hash != e.Layers[i] {
				c.field(fmt.Sprintf("projection weights of layer %d", i), hash, e.Layers[i], true, false)
				c.out[len(c.out)-1].Why = "export them again from the decoder's checkpoint: `pdlink-vllm weights export`"
				break
			}
		}
	}
	if len(e.Rope) > 0 {
		c.ropes("projection's rope", c.d.Rope, e.Rope, true)
	}
}
