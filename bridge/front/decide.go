package front

import "fmt"

// Cold says which requests are worth a transfer. The zero value means the
// defaults.
type Cold struct {
	MinTokens int // prompt tokens; 0 means DefaultMinTokens, negative: any
	MinTail   int // tokens that a transfer would add; 0 means DefaultMinTail, negative: any

	// DecoderRate is the decoder's own prefill in tokens a second, when it is
	// known: a transfer must then promise to be sooner. 0 leaves that out.
	DecoderRate float64
}

func (c Cold) withDefaults() Cold {
	if c.MinTokens == 0 {
		c.MinTokens = DefaultMinTokens
	}
	if c.MinTail == 0 {
		c.MinTail = DefaultMinTail
	}
	return c
}

// refuse says why a plan is not worth a transfer, "" when it is. rate is the
// engine's measured one in tokens a second, 0 when there is none yet; it reads
// the whole prompt, whatever the decoder holds of it.
func (c Cold) refuse(p Plan, rate float64) string {
	adds := p.Covered(p.Blocks - p.Present)
	switch {
	case p.Blocks <= p.Present:
		return "warm: the decoder holds every whole block"
	case p.Tokens < c.MinTokens:
		return fmt.Sprintf("short: %d tokens, the limit is %d", p.Tokens, c.MinTokens)
	case adds < c.MinTail:
		return fmt.Sprintf("warm: %d tokens are missing, the limit is %d", adds, c.MinTail)
	}
	if c.DecoderRate > 0 && rate > 0 {
		alone, bridged := float64(adds)/c.DecoderRate, float64(p.Covered(p.Blocks))/rate
		if bridged >= alone {
			return fmt.Sprintf("no gain: the decoder takes %.1f s, the engine %.1f s", alone, bridged)
		}
	}
	return ""
}
