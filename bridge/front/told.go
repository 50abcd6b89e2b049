package front

import (
	"context"
	"net/http"
	"slices"
	"time"

	"pdlink/bridge/facts"
)

// told is what the decoder says of a model, and the name that its plans have for it.
type told struct {
	name  string
	facts *facts.Facts
}

// learnTime bounds a look at a model that no request waits for: a canary that is made
// takes a block's prefill.
const learnTime = 5 * time.Second

// listAge is how long the decoder's list of models is good for: as long as a host that
// comes names models one after the other.
const listAge = time.Second

// learned notes what the decoder says of a model. It is called with mu held.
func (p *Plugin) learned(model string, t told) {
	if len(p.models) >= maxLayouts {
		clear(p.models)
	}
	p.models[model] = t
}

// Facts is what the decoder says of a model, as of the last plan for it that lacked
// blocks, or the last Learn; nil before. It is not changed any more.
func (p *Plugin) Facts(model string) *facts.Facts {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.models[model].facts
}

// own is the header of calls that no request is behind.
func (p *Plugin) own() http.Header {
	h := http.Header{}
	if p.key != "" {
		h.Set("Authorization", "Bearer "+p.key)
	}
	return h
}

// lists reports whether the decoder lists a model as loaded, as of a moment ago.
func (p *Plugin) lists(ctx context.Context, model string) bool {
	p.listing.Lock() // those who come meanwhile are answered by the same call
	defer p.listing.Unlock()
	if time.Since(p.listed) > listAge {
		s, err := p.api.Status(ctx, p.own())
		if err != nil {
			return false
		}
		p.loaded, p.listed = s.Loaded(), time.Now()
	}
	return slices.Contains(p.loaded, model)
}

// Starting implements Starter.
func (p *Plugin) Starting(ctx context.Context, h http.Header) string {
	ctx, cancel := context.WithTimeout(ctx, learnTime)
	defer cancel()
	s, err := p.api.Status(ctx, h)
	if err != nil {
		return ""
	}
	return s.Starting
}

// Learn asks about a model, with the key of the options. Nothing is learned where the
// decoder has not loaded it, or wants another key. What a peer calls a model is not asked
// for unless the decoder lists it: any number of such names is one call.
func (p *Plugin) Learn(ctx context.Context, model string) {
	ctx, cancel := context.WithTimeout(ctx, learnTime)
	defer cancel()
	if !p.lists(ctx, model) {
		return
	}
	info, err := p.api.Info(ctx, p.own(), model)
	if err != nil || info.Model.ID != model {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.models[model].facts == nil {
		p.learned(model, told{"", info.Model.Told()}) // the next plan names it
	}
}
