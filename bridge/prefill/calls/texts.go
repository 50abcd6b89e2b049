package calls

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	"pdlink/bridge/facts"
	"pdlink/transport"
)

// Host is what a prefill host says of itself.
type Host struct {
	Version int      `json:"version"`
	Name    string   `json:"name"`   // for people
	Models  []string `json:"models"` // the decoder's ids of the models that it reads prompts for

	// Facts is what the engine has loaded, as far as this host's workers have it: a
	// document of package facts, at most facts.MaxSize bytes; nil: it is not told.
	Facts json.RawMessage `json:"facts,omitempty"`

	// Group is the engine that this host is a part of, with others; nil: it has one of
	// its own. A member that does not lead need not know any models.
	Group *Group `json:"group,omitempty"`

	// Waits is what the host waits for before it takes calls, and what to do about it, for
	// people: at most 1,024 bytes, and of KindWait only.
	Waits string `json:"waits,omitempty"`
}

// Group is one engine that is spread over several hosts: each has workers of it and
// sends what those make, its part of every transfer.
type Group struct {
	Name    string `json:"name"`    // the same on all hosts, at most 1,024 bytes
	Member  int    `json:"member"`  // which of the hosts this is, and which part it sends: 0 <= Member < Members
	Members int    `json:"members"` // how many there are: 2 to transport.MaxParts
	Leads   bool   `json:"leads"`   // it has the engine read prompts; one member does
}

// String is the group for people.
func (g Group) String() string {
	return fmt.Sprintf("part %d of %d of group %s", g.Member+1, g.Members, g.Name)
}

func (g *Group) check() error {
	if g.Name == "" || len(g.Name) > maxName || g.Members < 2 || g.Members > transport.MaxParts || g.Member < 0 || g.Member >= g.Members {
		return fmt.Errorf("%w: member %d of %d of a group whose name has %d bytes; a group has 2 to %d members, which count from 0",
			ErrCall, g.Member, g.Members, len(g.Name), transport.MaxParts)
	}
	return nil
}

// Encode returns h as it travels. The error is ErrCall for one that is not within
// its limits.
func (h Host) Encode() ([]byte, error) {
	h.Version = Version
	if h.Models == nil {
		h.Models = []string{}
	}
	h.Waits = clean(h.Waits, maxReason)
	if err := h.check(); err != nil {
		return nil, err
	}
	return encode(h)
}

func (h *Host) check() error {
	if len(h.Models) > MaxModels {
		return fmt.Errorf("%w: a host with %d models, limit %d", ErrCall, len(h.Models), MaxModels)
	}
	for _, m := range h.Models {
		if m == "" || len(m) > maxName {
			return fmt.Errorf("%w: a host with a model whose id has %d bytes, limit %d", ErrCall, len(m), maxName)
		}
		if clean(m, maxName) != m {
			return fmt.Errorf("%w: a host with a model whose id is %q: it has to be printable", ErrCall, m)
		}
	}
	if len(h.Facts) > facts.MaxSize {
		return fmt.Errorf("%w: a host whose facts have %d bytes, limit %d", ErrCall, len(h.Facts), facts.MaxSize)
	}
	if h.Group != nil {
		return h.Group.check()
	}
	return nil
}

// ParseHost reads what a host says of itself. Unknown fields are skipped. The error
// is ErrCall.
func ParseHost(b []byte) (Host, error) {
	var h Host
	if err := decode(b, &h); err != nil {
		return h, err
	}
	if h.Version != Version {
		return h, fmt.Errorf("%w: a prefill host of version %d, this program knows %d: both ends need the same version of pdlink", ErrCall, h.Version, Version)
	}
	h.Name, h.Waits = clean(h.Name, maxName), clean(h.Waits, maxReason)
	if h.Group != nil {
		h.Group.Name = clean(h.Group.Name, maxName)
	}
	return h, h.check()
}

// The states of a result.
const (
	Complete = "complete" // every block is visible at the receiver
	Partial  = "partial"  // a prefix is
	Declined = "declined" // this host does not do that: another one may
	Failed   = "failed"   // this host cannot be used now
)

// Result is how a call ended.
type Result struct {
	State   string `json:"state"`
	Reason  string `json:"reason,omitempty"` // why it is not complete, for people
	Blocks  int    `json:"blocks"`           // visible at the receiver, from the first on
	Total   int    `json:"total"`            // blocks of the plan
	Present int    `json:"present"`          // of Blocks, visible before
	Bytes   uint64 `json:"bytes"`            // payload that the receiver took
	Clear   bool   `json:"clear,omitempty"`  // some of it was not encrypted

	// Times of the call in seconds: until the transfer was open, that the engine
	// took, and in all.
	OpenSeconds   float64 `json:"open_seconds"`
	EngineSeconds float64 `json:"engine_seconds"`
	Seconds       float64 `json:"seconds"`

	Workers []Worker `json:"workers,omitempty"`
}

// Worker is what one worker of the engine says of its part.
type Worker struct {
	Rank    int     `json:"rank"`
	Tokens  int     `json:"tokens"` // how far it got
	Capture float64 `json:"capture_seconds"`
	Project float64 `json:"project_seconds"`
	Wait    float64 `json:"wait_seconds"`
	Fault   string  `json:"fault,omitempty"`
}

// Encode returns r as it travels, without the workers where it would be too long.
func (r Result) Encode() []byte {
	r.Reason = clean(r.Reason, maxReason)
	b, err := encode(r)
	if err != nil {
		r.Workers = nil
		b, err = encode(r)
	}
	if err != nil { // no field can fail to marshal but a number that is none
		return []byte(`{"state":"failed","reason":"the result cannot be encoded"}`)
	}
	return b
}

// ParseResult reads a result. Unknown fields are skipped. The error is ErrCall.
func ParseResult(b []byte) (Result, error) {
	var r Result
	if err := decode(b, &r); err != nil {
		return r, err
	}
	known := r.State == Complete || r.State == Partial || r.State == Declined || r.State == Failed
	if !known || r.Present < 0 || r.Blocks < r.Present || r.Total < r.Blocks || len(r.Workers) > maxWorkers ||
		r.State == Complete && r.Blocks != r.Total {
		return Result{}, fmt.Errorf("%w: a result that contradicts itself: %q, %d of %d blocks", ErrCall, clean(r.State, 40), r.Blocks, r.Total)
	}
	r.Reason = clean(r.Reason, maxReason)
	for i := range r.Workers {
		r.Workers[i].Fault = clean(r.Workers[i].Fault, maxReason)
	}
	return r, nil
}

func encode(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCall, err)
	}
	if len(b) > maxText {
		return nil, fmt.Errorf("%w: %d bytes, limit %d", ErrCall, len(b), maxText)
	}
	return b, nil
}

func decode(b []byte, v any) error {
	if len(b) > maxText {
		return fmt.Errorf("%w: %d bytes, limit %d", ErrCall, len(b), maxText)
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%w: %w", ErrCall, err)
	}
	return nil
}

// clean makes the other end's text fit for people: one line, at most limit bytes.
func clean(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
