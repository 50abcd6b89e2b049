package bridge

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"

	"pdlink/transport"
)

// State is the first word of a verdict.
type State string

// The states of a verdict.
const (
	Complete State = "complete" // every block of the plan is visible
	Partial  State = "partial"  // a prefix is visible, perhaps none
	Skipped  State = "skipped"  // there was nothing to move
	Declined State = "declined" // the transfer was refused
)

// LinkUse is what one link carried of a transfer.
type LinkUse struct {
	Link   string `json:"link"`   // scheme
	Sealed bool   `json:"sealed"` // false: the data was in clear
	Bytes  uint64 `json:"bytes"`  // payload bytes that arrived over it
}

// Verdict is how a transfer ended. It travels as JSON.
type Verdict struct {
	Transfer string    `json:"transfer,omitempty"`
	State    State     `json:"state"`
	Reason   string    `json:"reason,omitempty"` // empty when complete
	Blocks   int       `json:"blocks"`           // visible at the end, from the start of the chain
	Total    int       `json:"total"`            // blocks of the plan
	Present  int       `json:"present"`          // of Blocks, visible before the transfer
	Bytes    uint64    `json:"bytes"`            // payload bytes received
	Bad      uint64    `json:"bad,omitempty"`    // pieces whose checksum did not match
	Seconds  float64   `json:"seconds"`          // from the first open to the last block visible, or frame if none became so
	Links    []LinkUse `json:"links,omitempty"`
}

// String is the verdict as people read it: "complete", "partial 3/5: why".
func (v Verdict) String() string {
	var b strings.Builder
	b.WriteString(string(v.State))
	if v.State == Partial {
		fmt.Fprintf(&b, " %d/%d", v.Blocks, v.Total)
	}
	if v.Reason != "" {
		b.WriteString(": ")
		b.WriteString(v.Reason)
	}
	return b.String()
}

func (v Verdict) encode() []byte {
	b, err := json.Marshal(v)
	if err != nil { // no field can fail to marshal but a NaN of Seconds
		return []byte(`{"state":"partial","reason":"verdict cannot be encoded"}`)
	}
	return b
}

// ParseVerdict reads what Receiver sent as the transfer's result.
func ParseVerdict(b []byte) (Verdict, error) {
	var v Verdict
	if err := json.Unmarshal(b, &v); err != nil {
		return v, fmt.Errorf("%w: verdict of the receiver: %w", ErrAnswer, err)
	}
	known := v.State == Complete || v.State == Partial || v.State == Skipped || v.State == Declined
	if !known || v.Present < 0 || v.Blocks < v.Present || v.Total < v.Blocks || v.Total > MaxBlocks ||
		v.Seconds < 0 || len(v.Links) > transport.MaxParts || (v.State == Complete && v.Blocks != v.Total) {
		return Verdict{}, fmt.Errorf("%w: verdict of the receiver contradicts itself", ErrAnswer)
	}
	v.Transfer, v.Reason = printable(v.Transfer), printable(v.Reason)
	for i := range v.Links {
		v.Links[i].Link = printable(v.Links[i].Link)
	}
	return v, nil
}

// printable makes a peer's text fit for a terminal: one line, no control
// characters, at most transport.MaxReason bytes.
func printable(s string) string {
	if len(s) > transport.MaxReason {
		s = s[:transport.MaxReason]
	}
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// addLink sums up bytes by link.
func (v *Verdict) addLink(u LinkUse) {
	for i := range v.Links {
		if v.Links[i].Link == u.Link && v.Links[i].Sealed == u.Sealed {
			v.Links[i].Bytes += u.Bytes
			return
		}
	}
	v.Links = append(v.Links, u)
}

// Span is a run of blocks: First, First+1, … First+Count-1.
type Span struct {
	First uint32 `json:"first"`
	Count uint32 `json:"count"`
}

// Answer is what a receiver tells a sender when it admits a transfer. It
// travels as JSON.
type Answer struct {
	Blocks     int    `json:"blocks"`      // blocks of the plan
	BlockBytes int64  `json:"block_bytes"` // bytes of each block's data
	Present    []Span `json:"present,omitempty"`
}

func (a Answer) encode() ([]byte, error) { return json.Marshal(a) }

func parseAnswer(b []byte) (Answer, error) {
	var a Answer
	if err := json.Unmarshal(b, &a); err != nil {
		return a, fmt.Errorf("%w: %w", ErrAnswer, err)
	}
	if a.Blocks < 0 || a.Blocks > MaxBlocks || a.BlockBytes < 0 {
		return a, fmt.Errorf("%w: %d blocks of %d bytes", ErrAnswer, a.Blocks, a.BlockBytes)
	}
	if len(a.Present) > MaxBlocks {
		return a, fmt.Errorf("%w: %d runs of present blocks", ErrAnswer, len(a.Present))
	}
	for _, s := range a.Present {
		if uint64(s.First)+uint64(s.Count) > uint64(a.Blocks) {
			return a, fmt.Errorf("%w: present blocks %d+%d of %d", ErrAnswer, s.First, s.Count, a.Blocks)
		}
	}
	return a, nil
}

func spans(present []bool) []Span {
	var out []Span
	for i, p := range present {
		if !p {
			continue
		}
		if n := len(out); n > 0 && out[n-1].First+out[n-1].Count == uint32(i) {
			out[n-1].Count++
			continue
		}
		out = append(out, Span{First: uint32(i), Count: 1})
	}
	return out
}
