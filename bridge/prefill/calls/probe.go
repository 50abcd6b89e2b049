package calls

import (
	"fmt"
	"time"
)

// KindProbe is opened by a prefill host that wants to know what the decode host makes of
// it, without being taken for an engine.
const KindProbe = "pdlink/probe"

// Opinion is what a decode host makes of a prefill host.
type Opinion struct {
	Version int    `json:"version"`
	Millis  int64  `json:"unix_ms"` // the decode host's clock
	Build   string `json:"build,omitempty"`

	// Models has one entry for each that the host named.
	Models map[string]ModelOpinion `json:"models,omitempty"`
}

// ModelOpinion is the part of one model.
type ModelOpinion struct {
	Known    bool     `json:"known"`              // the decoder's is known, so they were compared
	Refused  string   `json:"refused,omitempty"`  // why nothing is read for it
	Findings []string `json:"findings,omitempty"` // what differs, or is unknown at one end
}

// maxFindings bounds the findings of a model that travel.
const maxFindings = 8

// Time is the decode host's clock as it answered.
func (o Opinion) Time() time.Time { return time.UnixMilli(o.Millis) }

// Encode returns o as it travels. The error is ErrCall for one that is not within its
// limits.
func (o Opinion) Encode() ([]byte, error) {
	o.Version = Version
	if err := o.check(); err != nil {
		return nil, err
	}
	return encode(o)
}

func (o *Opinion) check() error {
	if len(o.Models) > MaxModels {
		return fmt.Errorf("%w: an opinion of %d models, limit %d", ErrCall, len(o.Models), MaxModels)
	}
	for name, m := range o.Models {
		if len(name) > maxName {
			return fmt.Errorf("%w: an opinion of a model whose id has %d bytes, limit %d", ErrCall, len(name), maxName)
		}
		m.Refused = clean(m.Refused, maxReason)
		m.Findings = m.Findings[:min(len(m.Findings), maxFindings)]
		for i := range m.Findings {
			m.Findings[i] = clean(m.Findings[i], maxReason)
		}
		o.Models[name] = m
	}
	o.Build = clean(o.Build, maxName)
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
	return o, o.check()
}
