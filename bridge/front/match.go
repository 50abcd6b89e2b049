package front

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"pdlink/bridge/facts"
	"pdlink/bridge/prefill/calls"
	"pdlink/transport"
)

// MatchOptions of Matches. Decoder is required.
type MatchOptions struct {
	// Decoder returns what the decoder says of a model that it has loaded; nil where
	// that is not known yet. What it returns is not changed any more.
	Decoder func(model string) *facts.Facts

	// Learn finds out about a model, as far as that goes without a request for it.
	// Nil: only requests do.
	Learn func(ctx context.Context, model string)

	// AllowUnknown takes engines whose model cannot be compared, since one of the two
	// ends does not tell. One that differs is never taken.
	AllowUnknown bool

	// OnMatch is told of each comparison that found something, once. It is called by
	// Engine.Serves of the engines that Hosts make, so a request may wait for it: it must
	// return soon. It may call Front.Add. Nil: nobody is told.
	OnMatch func(MatchEvent)
}

// MatchEvent is a comparison that found something.
type MatchEvent struct {
	Host, Model string
	Findings    []facts.Finding
	Refused     string // why nothing is read for the model there; "": it is, all the same
}

// Matches hold what prefill hosts say of the model that they have loaded against what
// the decoder says of its own. Nil compares nothing. It may be used concurrently.
type Matches struct {
	o MatchOptions

	mu   sync.Mutex               // guards the rest
	done map[match]string         // why not
	sums map[*facts.Facts]factSum // of documents that are in use, which are not changed
}

// match is what was compared, by what it says: an engine that is started again under its
// name may say something else, or the same once more.
type match struct {
	host, model     string
	decoder, engine factSum
}

// factSum is the sum of a document's JSON; zero of none.
type factSum [sha256.Size]byte

// Bounds of what is remembered: hosts, models, and how often they are loaded; documents,
// of which each has up to 32 KB.
const (
	maxMatches = 4096
	maxSums    = 256
)

// sum names a document by its contents. It is called with mu held. A document that has
// been summed is kept, so that no other one gets its address.
func (m *Matches) sum(f *facts.Facts) factSum {
	if f == nil {
		return factSum{}
	}
	if s, ok := m.sums[f]; ok {
		return s
	}
	b, err := json.Marshal(f)
	if err != nil { // of numbers that JSON cannot say
		b = fmt.Appendf(nil, "%+v", *f)
	}
	if len(m.sums) >= maxSums {
		clear(m.sums)
	}
	s := factSum(sha256.Sum256(b))
	m.sums[f] = s
	return s
}

// NewMatches returns matches of nobody yet. The error Is ErrOptions.
func NewMatches(o MatchOptions) (*Matches, error) {
	if o.Decoder == nil {
		return nil, fmt.Errorf("%w: nothing says what the decoder's models are", ErrOptions)
	}
	if o.OnMatch == nil {
		o.OnMatch = func(MatchEvent) {}
	}
	return &Matches{o: o, done: make(map[match]string), sums: make(map[*facts.Facts]factSum)}, nil
}

// refusal says why a host may not read prompts for a model; "" where it may, or where
// the decoder's is not known yet: it is before a request needs it.
func (m *Matches) refusal(host, model string, engine *facts.Facts) string {
	if m == nil {
		return ""
	}
	decoder := m.o.Decoder(model)
	if decoder == nil {
		return ""
	}
	m.mu.Lock()
	key := match{host, model, m.sum(decoder), m.sum(engine)}
	why, known := m.done[key]
	m.mu.Unlock()
	if known {
		return why
	}
	e := MatchEvent{Host: host, Model: model, Findings: facts.Compare(decoder, engine)}
	e.Refused = facts.Refusal(e.Findings, m.o.AllowUnknown)
	m.mu.Lock()
	_, known = m.done[key]
	if len(m.done) >= maxMatches {
		clear(m.done)
	}
	m.done[key] = e.Refused
	m.mu.Unlock()
	if !known && len(e.Findings) > 0 {
		m.o.OnMatch(e)
	}
	return e.Refused
}

// known is what the decoder says of a model, after finding out about it where that is not
// known yet; nil where it cannot be found out, or the context has ended.
func (m *Matches) known(ctx context.Context, model string) *facts.Facts {
	f := m.o.Decoder(model)
	if f != nil || m.o.Learn == nil || ctx.Err() != nil {
		return f
	}
	m.o.Learn(ctx, model)
	return m.o.Decoder(model)
}

// met compares a host that has come, as far as the decoder's models are known or can
// be found out about within learnTime.
func (m *Matches) met(ctx context.Context, host string, models []string, engine *facts.Facts) {
	if m == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, learnTime) // for all that a peer may name
	defer cancel()
	for _, model := range models {
		if m.known(ctx, model) != nil {
			m.refusal(host, model, engine)
		}
	}
}

// toldFacts reads what a host says of its model; nil where it says nothing.
func toldFacts(data []byte) *facts.Facts {
	if len(data) == 0 {
		return nil
	}
	f, err := facts.Parse(data)
	if err != nil {
		return &facts.Facts{Version: facts.Version, Unknown: map[string]string{"": err.Error()}}
	}
	return f
}

// reader is an Engine that says why it does not serve a model.
type reader interface {
	// Reads returns the decoder's ids of the models that it reads prompts for, in
	// order.
	Reads() []string

	// Refused says why it may not be used for a model; "" where it may.
	Refused(model string) string
}

// Refused implements reader.
func (x *host) Refused(model string) string {
	return x.h.o.Matches.refusal(x.name, model, x.told.Load())
}

// Refused implements reader: each host has told of its part.
func (e *spread) Refused(model string) string {
	return e.members[0].h.o.Matches.refusal(e.name, model, e.joint.of(e.members))
}

// joint is what the hosts of one engine tell together. It may be used concurrently.
type joint struct {
	mu    sync.Mutex // guards the rest
	parts []*facts.Facts
	whole *facts.Facts
}

// of puts together what hosts have told, again where one has told something else.
func (j *joint) of(members []*host) *facts.Facts {
	parts, told := make([]*facts.Facts, len(members)), make([]*facts.Facts, 0, len(members))
	for i, x := range members {
		if parts[i] = x.told.Load(); parts[i] != nil {
			told = append(told, parts[i])
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if slices.Equal(parts, j.parts) {
		return j.whole
	}
	whole, err := facts.Merge(told)
	switch {
	case len(told) < len(parts):
		whole = nil
	case err != nil:
		whole = &facts.Facts{Version: facts.Version, Unknown: map[string]string{"": err.Error()}}
	}
	j.parts, j.whole = parts, whole
	return whole
}

// meet compares a host that has come, or the engine that it completes.
func (h *Hosts) meet(x *host, said calls.Host) {
	m := h.o.Matches
	if m == nil {
		return
	}
	if said.Group == nil {
		m.met(h.ctx, x.name, said.Models, x.told.Load())
		return
	}
	h.groups.mu.Lock()
	var e *spread
	if g := h.groups.byName[said.Group.Name]; g != nil {
		e = g.engine
	}
	h.groups.mu.Unlock()
	if e != nil {
		m.met(h.ctx, e.name, e.models, e.joint.of(e.members))
	}
}

// Reads implements reader.
func (e *engaged) Reads() []string { return e.models }

// Reads implements reader.
func (e *spread) Reads() []string { return e.models }

// lacking is ErrNoEngine for a model, with the reasons of engines that are there and
// refused, or read other models.
func (e *engines) lacking(model string) error {
	e.mu.Lock()
	all, halts := slices.Clone(e.all), e.halts()
	e.mu.Unlock()
	var reasons []string
	for _, p := range all {
		r, ok := p.Engine.(reader)
		if !ok {
			continue
		}
		if why := r.Refused(model); why != "" {
			reasons = append(reasons, p.Name()+" is refused, its model is another: "+why)
		} else if !slices.Contains(r.Reads(), model) {
			reasons = append(reasons, fmt.Sprintf("%s reads prompts for %s, not for %s: if one of its models is the same, say so there with --model %s=ITS_ID",
				p.Name(), some(r.Reads()), model, model))
		}
	}
	if reasons = append(reasons, halts...); len(reasons) == 0 {
		return ErrNoEngine
	}
	return fmt.Errorf("%w: %s", ErrNoEngine, strings.Join(reasons, "; "))
}

// some are the first of a list, for people.
func some(list []string) string {
	const most = 3
	if more := len(list) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), more)
	}
	return strings.Join(list, ", ")
}

// probe answers what is made of a host that does not want calls.
func (h *Hosts) probe(conn transport.Conn, offer transport.Offer) {
	said, err := calls.ParseHost(offer.Request().Meta)
	if err != nil {
		offer.Refuse(transport.RefuseOther, err.Error()) //nolint:errcheck // it fails when nobody is left to tell
		return
	}
	o := calls.Opinion{Build: h.o.Build, Models: make(map[string]calls.ModelOpinion)}
	o.Takes, o.Waits = h.state(conn.Facts(), said)
	if h.o.Matches != nil {
		told := toldFacts(said.Facts)
		ctx, cancel := context.WithTimeout(h.ctx, learnTime) // for all that a peer may name
		for _, model := range said.Models {
			o.Models[model] = h.o.Matches.opinion(ctx, model, told)
		}
		cancel()
	}
	o.Millis = time.Now().UnixMilli()
	b, err := o.Encode()
	if err != nil || len(b) > conn.Facts().MaxMeta {
		offer.Refuse(transport.RefuseOther, "the answer does not fit") //nolint:errcheck // as above
		return
	}
	in, err := offer.Admit(b)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(h.ctx, learnTime) // by then who asked has read it
	defer cancel()
	drain(ctx, in) //nolint:errcheck // however it ends
	in.Cancel("that is all")
}

// opinion compares a model, as far as the decoder's is known or can be found out about
// while the context lasts.
func (m *Matches) opinion(ctx context.Context, model string, engine *facts.Facts) (o calls.ModelOpinion) {
	decoder := m.known(ctx, model)
	if decoder == nil {
		return o
	}
	o.Known = true
	list := facts.Compare(decoder, engine)
	o.Refused = facts.Refusal(list, m.o.AllowUnknown)
	for _, f := range list {
		o.Findings = append(o.Findings, f.String())
	}
	return o
}
