package calls

import (
	"fmt"
	"time"
)

// Opinion is what a decode host makes of a prefill host.
type Opinion struct {
	Version int    `json:"version"`
	Millis  int64  `json:"unix_ms"` // the decode host's clock
	Build   string `json:"build,omitempty"`

	// Takes says that a host of the asker's name is connected and takes calls; Waits is for
	// what one waits that is connected and takes none yet, in its own words. Neither: no
	// such host is connected, or it does not say.
	Takes bool   `json:"takes_calls,omitempty"`
	Waits string `json:"waits,omitempty"`

	// Models has one entry for each that the host named. Where not all fit, those are
	// left out of which nothing is known.
	Models map[string]ModelOpinion `json:"models,omitempty"`
}

// ModelOpinion is the part of one model. Its zero value says that nothing is known.
type ModelOpinion struct {
	Known   bool   `json:"known"`             // the decoder's is known, so they were compared
	Refused string `json:"refused,omitempty"` // why nothing is read for it

	// Findings are what differs, or is unknown at one end. Where not all travel, the
	// last one says how many more there are.
	Findings []string `json:"findings,omitempty"`
}

// Time is the decode host's clock as it answered.
func (o Opinion) Time() time.Time { return time.UnixMilli(o.Millis) }

// Encode returns o as it travels, at most 64 KiB. Where all of it is more, findings are
// left out first, then reasons are cut, then models left out of which nothing is known. o
// stays as it is. The error is ErrCall for one that is not within its limits even so.
func (o Opinion) Encode() ([]byte, error) {
	o.Version = Version
	if err := o.check(); err != nil {
		return nil, err
	}
	size := limits{maxFindings, maxReason}
	for {
		b, err := encode(o.cleaned(size))
		if err == nil || !size.lower() {
			return b, err
		}
	}
}

// limits are how much of an opinion of one model travels.
type limits struct {
	findings int // how many; 0: one, and no model of which nothing is known
	reason   int // bytes of a text
}

// lower makes the limits smaller; false where they cannot be.
func (l *limits) lower() bool {
	switch {
	case l.findings > 1:
		l.findings /= 2
	case l.reason > leastReason:
		l.reason /= 2
	case l.findings == 1:
		l.findings = 0
	default:
		return false
	}
	return true
}

// cleaned is a copy of o whose texts are fit for people and within limits.
func (o Opinion) cleaned(l limits) Opinion {
	o.Build, o.Waits = clean(o.Build, maxName), clean(o.Waits, l.reason)
	models := o.Models
	if models != nil {
		o.Models = make(map[string]ModelOpinion, len(models))
	}
	for name, m := range models {
		if l.findings < 1 && !m.Known && m.Refused == "" && len(m.Findings) == 0 {
			continue
		}
		o.Models[name] = m.cleaned(l)
	}
	return o
}

func (m ModelOpinion) cleaned(l limits) ModelOpinion {
	m.Refused = clean(m.Refused, l.reason)
	all := m.Findings
	if len(all) == 0 {
		return m
	}
	said := all
	if most := max(l.findings, 1); len(all) > most {
		said = all[:most-1]
	}
	m.Findings = make([]string, 0, len(said)+1)
	for _, f := range said {
		m.Findings = append(m.Findings, clean(f, l.reason))
	}
	if more := len(all) - len(said); more > 0 {
		m.Findings = append(m.Findings, fmt.Sprintf("%d more", more))
	}
	return m
}

// check holds the opinion against the limits that cutting it cannot keep.
func (o *Opinion) check() error {
	if len(o.Models) > MaxModels {
		return fmt.Errorf("%w: an opinion of %d models, limit %d", ErrCall, len(o.Models), MaxModels)
	}
	for name := range o.Models {
		if len(name) > maxName {
			return fmt.Errorf("%w: an opinion of a model whose id has %d bytes, limit %d", ErrCall, len(name), maxName)
		}
	}
	return nil
}

// ParseOpinion reads an opinion. Unknown fields are skipped. The error is ErrCall.
func ParseOpinion(b []byte) (Opinion, error) {
	var o Opinion
	if err := decode(b, &o); err != nil {
		return o, err
	}
	if o.Version != Version {
		return o, fmt.Errorf("%w: an opinion of version %d, this program knows %d", ErrCall, o.Version, Version)
	}
	if err := o.check(); err != nil {
		return o, err
	}
	return o.cleaned(limits{maxFindings, maxReason}), nil
}
