package bridge

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"pdlink/transport"
)

// decide fixes the verdict. It is called with a.mu held.
func (a *assembly) decide() {
	v := &a.verdict
	for _, m := range a.members {
		if m.in != nil {
			a.count(m)
		}
	}
	removed := a.removed()
	v.Transfer, v.Total, v.Present, v.Blocks = a.id.String(), len(a.blocks), min(a.present, a.visible), a.visible
	v.Seconds = a.lastAt.Seconds()
	if a.lastAt == 0 { // nothing became visible
		v.Seconds = time.Duration(a.arrived.Load()).Seconds()
	}
	v.State = Partial
	switch {
	case v.Total == 0:
		v.State, v.Reason = Skipped, "the plan has no blocks"
	case v.Blocks == v.Total:
		v.State = Complete
	case a.end.why != nil: // senders were told not to keep what is behind it: nobody can go on
		v.Reason = a.end.why.Error()
	case errors.Is(a.failed, ErrClosed):
		v.Reason, v.Stopped = "the receiver was stopped", true
	case errors.Is(a.failed, errYield):
		v.Reason, v.Stopped = "another transfer needs the blocks that may be open at once", true
	case removed && (a.failed == nil || errors.Is(a.failed, ErrStore)): // which may be why the store failed
		v.Reason = fmt.Sprintf("block %d was removed from the store meanwhile", v.Blocks)
	case a.failed != nil:
		v.Reason = a.failed.Error()
	case a.stuck.Load() != 0:
		v.Reason = "more blocks were open at once than the store takes: send smaller chunks"
	case a.finished() == a.parts:
		v.Reason = "the senders finished without sending every byte"
	case a.live() && len(a.members) == a.parts:
		v.Reason = fmt.Sprintf("nothing came for %v", a.patience())
	default:
		v.Reason = a.unfinished()
	}
}

// removed cuts the visible prefix where somebody else, a decoder that needs room
// for example, removed a block meanwhile. It is called with a.mu held.
func (a *assembly) removed() bool {
	for i := range a.visible {
		if a.isVisible != nil && !a.isVisible(i) {
			a.visible = i
			return true
		}
	}
	return false
}

// unfinished says which senders did not finish, and of those that were here why. It
// is called with a.mu held.
func (a *assembly) unfinished() string {
	if a.parts == 1 {
		return "the sender did not finish" + lossText(a.losses[0], ": %s")
	}
	var parts []string
	for p := range a.parts {
		if m := a.members[p]; m == nil || !m.ended {
			parts = append(parts, strconv.Itoa(p+1)+lossText(a.losses[p], " (%s)"))
		}
	}
	return fmt.Sprintf("of %d parts these did not finish: %s", a.parts, strings.Join(parts, ", "))
}

// lossText is why a sender was lost, in a format, if it was.
func lossText(why error, format string) string {
	var cancelled *transport.CancelledError
	switch {
	case why == nil:
		return ""
	case errors.As(why, &cancelled): // the rest is known to whoever reads it
		return fmt.Sprintf(format, cancelled.Reason)
	}
	return fmt.Sprintf(format, why)
}

// count adds what a member received to the verdict, once. It is called with
// a.mu held.
func (a *assembly) count(m *member) {
	if m.counted {
		return
	}
	m.counted = true
	s := m.in.Stats()
	a.verdict.Bytes += s.Bytes
	a.verdict.Bad += s.BadPiece
	a.verdict.Links = addLink(a.verdict.Links, LinkUse{
		Link: m.via.facts.Link, Sealed: m.via.facts.Sealed, Bytes: s.Bytes, Saved: s.Saved, Codec: s.Codec,
	})
}
