package front

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"pdlink/bridge/facts"
	"pdlink/bridge/omlx/plugin"
)

// told is what the decoder says of a model, and the name that its plans have for it.
type told struct {
	name  string
	facts *facts.Facts
}

// learnTime bounds a look at a model that no request waits for: a canary that is made
// takes a block's prefill.
const learnTime = 5 * time.Second

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

// Learn asks about a model, with the key of the options. Nothing is learned where the
// decoder has not loaded it, or wants another key.
func (p *Plugin) Learn(ctx context.Context, model string) {
	ctx, cancel := context.WithTimeout(ctx, learnTime)
	defer cancel()
	u := p.base.JoinPath("info")
	u.RawQuery = url.Values{"model": {model}}.Encode()
	h := http.Header{}
	if p.key != "" {
		h.Set("Authorization", "Bearer "+p.key)
	}
	data, err := p.call(ctx, http.MethodGet, u, h, nil)
	if err != nil {
		return
	}
	info, err := plugin.ParseInfo(data)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.models[model].facts == nil {
		p.learned(model, told{"", info.Model.Told()}) // the next plan names it
	}
}
