package cost

import "math"

// Link is what was measured of a link under the bridge, in seconds.
type Link struct {
	Fixed    float64 // of a transfer of any length, when bytes are there at once
	PerToken float64 // and for each token
	Tail     float64 // from the last layer's last piece to all blocks visible, at the pace of a prefill
}

// Stream is how long the link takes for so many tokens that are there at once.
func (l Link) Stream(tokens int) float64 { return l.Fixed + l.PerToken*float64(tokens) }

// Engines is what is known of the two ends.
type Engines struct {
	Prefill Series // the machine that reads prompts for the decoder
	Native  Series // the decoder reading a prompt by itself, to its first token
	Cached  Series // the decoder, to its first token, when it has every whole block of the prompt; empty: its time for the rest of the prompt
	Block   int    // tokens of a block
}

// Usable is how many tokens of a prompt are in blocks that the decoder can use: whole
// ones, with at least a token left for it to compute.
func (e Engines) Usable(tokens int) int {
	if e.Block < 1 || tokens < 1 {
		return 0
	}
	return (tokens - 1) / e.Block * e.Block
}

// Time is the time to the first token of a bridged prompt, and its parts, in seconds. The
// parts follow each other: their sum is the whole.
type Time struct {
	Prefill float64 `json:"prefill"` // the engine reads the prompt; the link carries blocks meanwhile
	Exposed float64 `json:"exposed"` // the link is slower than that: what it still has to carry
	Tail    float64 `json:"tail"`    // the last layer, until all blocks are visible
	Decoder float64 `json:"decoder"` // it loads them, computes what is left, and answers
	Total   float64 `json:"total"`
}

// Bridged is the time of a prompt that is bridged over a link. A prompt without a usable
// block is not bridged: it is the decoder's alone.
func (e Engines) Bridged(l Link, tokens int) Time {
	usable := e.Usable(tokens)
	if usable == 0 {
		t := e.Native.At(tokens)
		return Time{Decoder: t, Total: t}
	}
	t := Time{Prefill: e.Prefill.At(tokens), Tail: l.Tail}
	t.Exposed = max(0, l.Stream(usable)-t.Prefill)
	if len(e.Cached) > 0 {
		t.Decoder = e.Cached.At(tokens)
	} else {
		t.Decoder = e.Native.At(tokens) - e.Native.At(usable)
	}
	t.Total = t.Prefill + t.Exposed + t.Tail + t.Decoder
	return t
}

// Longest is the longest prompt that is looked at for a break-even.
const Longest = 1_000_000

// perBlock is how often a break-even is looked for within a block: what the decoder has to
// compute itself rises and falls with the block.
const perBlock = 8

// BreakEven is the length of a prompt from which on bridging is faster than the decoder
// alone, for all longer ones up to Longest: to an eighth of a block. It is false where
// the decoder alone is faster at Longest, or where a time is not known.
func (e Engines) BreakEven(l Link) (tokens int, ok bool) {
	step := max(1, e.Block/perBlock)
	for t := Longest / step * step; t >= step; t -= step {
		won := e.Native.At(t) - e.Bridged(l, t).Total
		if !(won > 0) || math.IsInf(won, 0) {
			return tokens, tokens > 0
		}
		tokens = t
	}
	return tokens, tokens > 0
}

// Slowest is the rate, in bytes/s, of a link over which a prompt of a length is answered as
// soon as by the decoder alone; what else the link takes is as of l. It is false where no
// link would do, or a time is not known.
func (e Engines) Slowest(l Link, tokens int, bytesPerToken float64) (rate float64, ok bool) {
	l.PerToken = 0
	free := e.Bridged(l, tokens)
	room := e.Native.At(tokens) - free.Total + free.Prefill - l.Fixed
	usable := e.Usable(tokens)
	if !(room > 0) || usable == 0 || !(e.Native.At(tokens) > free.Total) {
		return 0, false
	}
	return float64(usable) * bytesPerToken / room, true
}

// Cable is a physical link: what it can carry at the most.
type Cable struct {
	Name string
	Rate float64 // payload bytes/s
}

// ofLine is the part of a line's bits that is payload: TCP segments of 1,448 bytes in
// frames that take 1,538 of the line, MTU 1500.
const ofLine = 1448.0 / 1538

// Cables are Ethernets that people have, the slowest first.
func Cables() []Cable {
	gbit := func(name string, rate float64) Cable { return Cable{name, rate * 1e9 / 8 * ofLine} }
	return []Cable{
		gbit("1 GbE", 1), gbit("2.5 GbE", 2.5), gbit("10 GbE", 10), gbit("25 GbE", 25), gbit("100 GbE", 100),
	}
}

// Shape is the size of what a model's prompt leaves.
type Shape struct {
	BytesPerToken float64
	Layers        int
	Chunk         int // tokens that the engine computes at a time
}

// LastLayer is how many bytes a prompt's last layer leaves at once, in the last chunk at
// the most.
func (s Shape) LastLayer() float64 {
	return s.BytesPerToken * float64(s.Chunk) / float64(max(1, s.Layers))
}

// Over is the link as it would be over a cable that carries no more than its rate: what
// was measured where nothing is slower than the hosts.
func (l Link) Over(c Cable, s Shape) Link {
	l.PerToken = max(l.PerToken, s.BytesPerToken/c.Rate)
	l.Tail += s.LastLayer() / c.Rate
	return l
}
