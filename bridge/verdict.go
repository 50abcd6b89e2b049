package bridge

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

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

	Saved uint64 `json:"saved,omitempty"` // of Bytes, those that a codec kept off the wire
	Codec string `json:"codec,omitempty"` // that did so, "bf16"
}

// Packed is "bf16 1.51:1", how much smaller the bytes were on the wire; empty where they
// went as they are.
func (u LinkUse) Packed() string {
	if u.Codec == "" || u.Saved == 0 || u.Saved >= u.Bytes {
		return ""
	}
	return fmt.Sprintf("%s %.2f:1", u.Codec, float64(u.Bytes)/float64(u.Bytes-u.Saved))
}

// PortUse is what a port of a network card counted while a transfer went on, by the
// names that its driver has. Other traffic of the port is in it too.
type PortUse struct {
	Port   string            `json:"port"`   // "mlx5_0:1"
	Counts map[string]uint64 `json:"counts"` // those that are not zero
}

// String is "mlx5_0:1: 3 out_of_sequence, 120 rcvd_pkts".
func (p PortUse) String() string {
	words := make([]string, 0, len(p.Counts))
	for _, name := range slices.Sorted(maps.Keys(p.Counts)) {
		words = append(words, fmt.Sprintf("%d %s", p.Counts[name], name))
	}
	return p.Port + ": " + strings.Join(words, ", ")
}

// Limits of what a peer may say of its ports: twice the lanes' ports that hosts have,
// and more than any driver counts.
const (
	maxPorts  = 16
	maxCounts = 256
)

// printablePorts makes what a peer says of its ports fit for a terminal, and bounds it.
func printablePorts(list []PortUse) []PortUse {
	list = list[:min(len(list), maxPorts)]
	for i := range list {
		list[i].Port = printable(list[i].Port)
		counts := make(map[string]uint64, min(len(list[i].Counts), maxCounts))
		for _, name := range slices.Sorted(maps.Keys(list[i].Counts)) {
			if len(counts) == maxCounts {
				break
			}
			counts[printable(name)] = list[i].Counts[name]
		}
		list[i].Counts = counts
	}
	return list
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
	Ports    []PortUse `json:"ports,omitempty"`   // the receiver's, over the transfer, where they count; see Opened.Ports
	Stopped  bool      `json:"stopped,omitempty"` // the receiver ended it for reasons of its own; opened again, perhaps later, it goes on
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
		v.Links[i].Link, v.Links[i].Codec = printable(v.Links[i].Link), printable(v.Links[i].Codec)
	}
	v.Ports = printablePorts(v.Ports)
	return v, nil
}

// printable is Printable of a text that may be as long as a reason.
func printable(s string) string { return Printable(s, transport.MaxReason) }

// Printable makes a text of somebody else fit for a terminal: one line, no control or
// invisible characters, at most limit bytes, and no character cut in two.
func Printable(s string, limit int) string {
	if len(s) > limit {
		for limit > 0 && !utf8.RuneStart(s[limit]) {
			limit--
		}
		s = s[:limit]
	}
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// addLink sums up bytes by link.
func addLink(links []LinkUse, u LinkUse) []LinkUse {
	for i := range links {
		if links[i].Link == u.Link && links[i].Sealed == u.Sealed {
			links[i].Bytes += u.Bytes
			links[i].Saved += u.Saved
			links[i].Codec = cmp.Or(u.Codec, links[i].Codec)
			return links
		}
	}
	return append(links, u)
}
