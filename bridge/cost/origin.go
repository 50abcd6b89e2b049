package cost

import "strings"

// Origin is where a number is from.
type Origin string

// The origins.
const (
	Here      Origin = "measured"  // in this run, on this host or from the engines that were asked
	Given     Origin = "given"     // said on the command line
	Elsewhere Origin = "published" // by somebody else, of other hardware
	Computed  Origin = "computed"  // by the model, from the others
	Unknown   Origin = "unknown"   // nobody says
)

// Origins are where the engines' times are from.
type Origins struct {
	Prefill Origin `json:"prefill"`
	Native  Origin `json:"native"`
	Cached  Origin `json:"cached"`
}

// settle says what is known of the origins of series that are not there.
func (o *Origins) settle(e Engines) {
	for _, x := range []struct {
		of Series
		to *Origin
	}{{e.Prefill, &o.Prefill}, {e.Native, &o.Native}, {e.Cached, &o.Cached}} {
		if len(x.of) == 0 || *x.to == "" {
			*x.to = Unknown
		}
	}
	if len(e.Cached) == 0 && len(e.Native) > 0 {
		o.Cached = Computed
	}
}

// say is an origin for people; published is who did.
func (o Origin) say(published Source) string {
	switch o {
	case Here:
		return "measured in this run"
	case Given:
		return "given on the command line"
	case Elsewhere:
		return "not measured here, but " + string(published)
	case Computed:
		return "computed"
	}
	return "of an origin that nobody says"
}

// EnginesText says where the engines' times are from, in a sentence; empty where they are
// not known.
func (r *Report) EnginesText() string {
	o := r.Engines.Origins
	if !r.Engines.known() {
		return ""
	}
	published, _, _ := strings.Cut(string(r.Engines.Source), "; the decoder")
	say := func(o Origin) string { return o.say(Source(published)) }
	if o.Prefill == o.Native && (o.Cached == o.Native || o.Cached == Computed) {
		return "The engines' times are " + say(o.Native) + "; what the links take is measured here."
	}
	return "The prefill engine's times are " + say(o.Prefill) + "; the decoder's are " + say(o.Native) +
		"; the decoder's with all blocks are " + say(o.Cached) + "; what the links take is measured here."
}

// known reports whether anything can be said of bridged prompts.
func (e *EngineReport) known() bool { return len(e.Prefill) > 0 && len(e.Native) > 0 }
