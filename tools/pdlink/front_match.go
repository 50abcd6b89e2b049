package main

import (
	"fmt"

	"pdlink/bridge/front"
)

// decoderKeyEnv has the decoder's API key, for what is asked without a request: on a
// command line everybody could read it.
const decoderKeyEnv = "PDLINK_DECODER_KEY"

// matches hold what prefill hosts have loaded against the decoder's model.
func (f *doorFlags) matches(p *front.Plugin, j *journal) (*front.Matches, error) {
	return front.NewMatches(front.MatchOptions{
		Decoder: p.Facts, Learn: p.Learn, AllowUnknown: f.allowUnknown,
		OnMatch: func(e front.MatchEvent) {
			for _, line := range matchText(e) {
				j.say("pdlink: warning: %s\n", line)
			}
		},
	})
}

// matchText is what people read of a comparison that found something.
func matchText(e front.MatchEvent) (lines []string) {
	who := fmt.Sprintf("prefill host %s, model %s", e.Host, e.Model)
	if e.Refused != "" {
		lines = append(lines, who+": nothing is read there, since its model is not the decoder's: "+e.Refused)
	}
	for _, f := range e.Findings {
		if !f.Refuses || e.Refused == "" {
			lines = append(lines, who+": "+f.String())
		}
	}
	return lines
}
