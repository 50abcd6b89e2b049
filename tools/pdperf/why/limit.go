package why

import (
	"fmt"
	"strings"
)

// Limit names what limited the link. The causes are tried from the one whose
// evidence cannot be the consequence of another: a full line; a store, slots or a
// window that somebody waited for; segments that were lost; processors; and then
// what is left.
func Limit(in Input) Verdict {
	if !sane(in) {
		return Verdict{Cause: Unknown, Evidence: "nothing was measured"}
	}
	for _, try := range []func(Input) (Verdict, bool){
		wire, disk, loss, window, starved, processors,
	} {
		if v, ok := try(in); ok {
			return v.bounded()
		}
	}
	return rest(in).bounded()
}

// bounded is v with a share of at most all: clocks of two ends differ a little.
func (v Verdict) bounded() Verdict {
	v.Share = max(0, min(1, v.Share))
	return v
}

// sane reports whether the figures can be reckoned with: another end may have said
// anything.
func sane(in Input) bool {
	for _, f := range []float64{
		in.Seconds, in.Line, in.Sender.Run, in.Sender.Ready, in.Sender.Disk, in.Sender.Leases, in.Sender.Fill, in.Sender.Grants,
		in.Sender.Acks, in.Sender.Device,
		in.Receiver.Run, in.Receiver.Ready, in.Receiver.Disk, in.Receiver.Leases, in.Receiver.Fill,
		in.Flow.Busy, in.Flow.WindowLimited, in.Flow.BufferLimited, in.Flow.RTT, in.Flow.MinRTT, in.Flow.ClosedFor,
	} {
		if !(f >= 0 && f <= most) {
			return false
		}
	}
	return in.Seconds >= least
}

// wire: it carried what it can.
func wire(in Input) (Verdict, bool) {
	if in.Line <= 0 {
		return Verdict{}, false
	}
	share := in.rate() / in.Line
	if share < full {
		return Verdict{}, false
	}
	return Verdict{Wire, share, fmt.Sprintf("%s of the %s that it can carry, %.0f %%", rate(in.rate()), rate(in.Line), 100*share)}, true
}

// disk: frames waited for the store.
func disk(in Input) (Verdict, bool) {
	share := in.Receiver.Disk / in.Seconds
	if share < waiting {
		return Verdict{}, false
	}
	return Verdict{Disk, share, fmt.Sprintf("frames waited for the receiver's store %s; its processors were at work %s",
		percent(share), percent(in.Receiver.share(in.Receiver.Run, in.Seconds)))}, true
}

// loss: segments were sent again because they were lost, while it was the network
// that held the sender. Where the peer had them twice they were not lost.
func loss(in Input) (Verdict, bool) {
	f := in.Flow
	if f.Segments == 0 || f.Retransmits <= f.Spurious {
		return Verdict{}, false
	}
	lost := float64(f.Retransmits-f.Spurious) / float64(f.Segments)
	held := (f.Busy - f.WindowLimited - f.BufferLimited) / in.Seconds
	if lost < lossy || held < waiting {
		return Verdict{}, false
	}
	text := fmt.Sprintf("%.2g %% of %d segments were lost and sent again", 100*lost, f.Segments)
	if f.Timeouts > 0 {
		text += fmt.Sprintf(", %d of them after a timeout", f.Timeouts)
	}
	return Verdict{Loss, held, text + fmt.Sprintf("; congestion control held the sender %s", percent(held))}, true
}

// window: the sender had more and the receiver no room for it. That is the window's
// size only where what had come was read at once.
func window(in Input) (Verdict, bool) {
	f := in.Flow
	share := f.WindowLimited / in.Seconds
	smaller := f.Window > 0 && f.Window < f.Congestion && share >= windowed
	if share < waiting && !smaller {
		return Verdict{}, false
	}
	held := fmt.Sprintf("the sender waited for room at the receiver %s", percent(share))
	busy := in.Receiver.busy(in.Seconds)
	switch waited, known := in.Receiver.backlog(); {
	case known && waited < waiting: // who reads is in time
	case busy >= saturated:
		return Verdict{ReceiverCPU, busy, held + "; the receiver " + in.Receiver.work(in.Seconds)}, true
	case known:
		return Verdict{Leases, waited, fmt.Sprintf("%s and bytes waited for their reader %s although its processors were at work %s: it had no slot for them",
			held, percent(waited), percent(in.Receiver.share(in.Receiver.Run, in.Seconds)))}, true
	}
	var facts []string
	if f.Window > 0 {
		text := fmt.Sprintf("it offers %s", size(f.Window))
		if smaller {
			text += fmt.Sprintf(", the network would take %s", size(f.Congestion))
		}
		facts = append(facts, text)
	}
	if f.ReceiveBuffer > 0 {
		facts = append(facts, fmt.Sprintf("its buffers have %s", size(f.ReceiveBuffer)))
	}
	if f.Closed > 0 {
		facts = append(facts, fmt.Sprintf("it closed its window %d times", f.Closed))
	}
	facts = append(facts, "its processors were at work "+percent(in.Receiver.share(in.Receiver.Run, in.Seconds)))
	return Verdict{ReceiveWindow, share, held + "; " + strings.Join(facts, ", ")}, true
}

// starved: the link had nothing to send although nobody was at work, because nobody
// filled slots or none came free, or because no more blocks may be on their way.
func starved(in Input) (Verdict, bool) {
	fill, wait, grants := in.Sender.Fill/in.Seconds, in.Sender.Leases/in.Seconds, in.Sender.Grants/in.Seconds
	moving, known := in.moving()
	if known && moving >= idle {
		return Verdict{}, false
	}
	if fill >= waiting {
		return Verdict{Leases, fill, fmt.Sprintf("slots were being filled and the link had none to send %s", percent(fill))}, true
	}
	if in.Sender.busy(in.Seconds) >= saturated || in.Receiver.busy(in.Seconds) >= saturated {
		return Verdict{}, false
	}
	if v, ok := roundTrip(in); ok {
		return v, true
	}
	switch share := 1 - moving; {
	case grants >= waiting:
		return Verdict{Leases, grants, fmt.Sprintf("the receiver promised no room %s: a larger receive ring would help", percent(grants))}, true
	case wait >= waiting:
		return Verdict{Leases, wait, fmt.Sprintf("the sender waited for a free slot %s: more or larger slots would help", percent(wait))}, true
	case known:
		return Verdict{Leases, share, fmt.Sprintf("the link had nothing to send %s and the sender's processors were at work %s: slots are filled too slowly",
			percent(share), percent(in.Sender.share(in.Sender.Run, in.Seconds)))}, true
	}
	return Verdict{}, false
}

// moving is the share of the time in which the link had something to send or on its way,
// where that is known: by its sockets, or by a device that has none.
func (in Input) moving() (share float64, known bool) {
	switch {
	case in.Flow.Sockets > 0:
		return min(1, in.Flow.Busy/in.Seconds), true
	case in.Sender.Device > 0:
		return min(1, in.Sender.Device/in.Seconds), true
	}
	return 0, false
}

// roundTrip: what kept the link idle is that all blocks that may be on their way had been
// sent, and none was acknowledged.
func roundTrip(in Input) (Verdict, bool) {
	moving, known := in.moving()
	unsent := 1 - moving
	held := min(unsent, in.Sender.Acks/in.Seconds)
	if !known || in.Sender.InFlight < 1 || unsent < gap || held < unsent*waiting {
		return Verdict{}, false
	}
	blocks := "one block"
	if n := in.Sender.InFlight; n > 1 {
		blocks = fmt.Sprintf("%d blocks", n)
	}
	return Verdict{RoundTrip, held, fmt.Sprintf("%s in flight: the link had nothing to send %s, until an acknowledgement came; more in flight would help",
		blocks, percent(held))}, true
}

// processors: one end could not do more. Where bytes wait for the receiver nearly
// always it is the slower one, and where they seldom do the sender is.
func processors(in Input) (Verdict, bool) {
	s, r := in.Sender.busy(in.Seconds), in.Receiver.busy(in.Seconds)
	text, sender := "", s >= r
	if share, ok := in.Receiver.backlog(); ok {
		text = fmt.Sprintf("; bytes waited for their reader %s", percent(share))
		sender = share < waiting
	}
	switch {
	case s >= saturated && (sender || r < saturated):
		return Verdict{SenderCPU, s, "it " + in.Sender.work(in.Seconds) + text}, true
	case r >= saturated:
		return Verdict{ReceiverCPU, r, "it " + in.Receiver.work(in.Seconds) + text}, true
	}
	return Verdict{}, false
}

// rest: what held the link most, where nothing stands out.
func rest(in Input) Verdict {
	f := in.Flow
	if f.Sockets == 0 {
		return device(in)
	}
	held := (f.Busy - f.WindowLimited - f.BufferLimited) / in.Seconds
	if f.Busy >= idle*in.Seconds && held >= waiting && in.rate() >= nearly*in.Line {
		text := fmt.Sprintf("the network held the sender %s at %s", percent(held), rate(in.rate()))
		if in.Line > 0 {
			text += fmt.Sprintf(" of the %s that it can carry", rate(in.Line))
		}
		if f.MinRTT > 0 && f.RTT > 2*f.MinRTT {
			text += fmt.Sprintf(" and its queues were full: round trips of %s, %s without", span(f.RTT), span(f.MinRTT))
		}
		return Verdict{Wire, held, text}
	}
	if v, ok := roundTrip(in); ok {
		return v
	}
	s, r := in.Sender.busy(in.Seconds), in.Receiver.busy(in.Seconds)
	return Verdict{Cause: Unknown, Evidence: fmt.Sprintf("nothing stands out: processors busy %s at the sender and %s at the receiver, window full %s, send buffer full %s",
		percent(s), percent(r), percent(f.WindowLimited/in.Seconds), percent(f.BufferLimited/in.Seconds))}
}

// device: what held a link that has no sockets.
func device(in Input) Verdict {
	work := fmt.Sprintf("the processors were at work %s at the sender, %s at the receiver",
		percent(in.Sender.share(in.Sender.Run, in.Seconds)), percent(in.Receiver.share(in.Receiver.Run, in.Seconds)))
	moving, known := in.moving()
	if !known {
		return Verdict{Cause: Unknown, Evidence: "no socket to ask, and " + work}
	}
	text := fmt.Sprintf("the device had frames to move %s, at %s", percent(moving), rate(in.rate()))
	if in.Line > 0 {
		text += fmt.Sprintf(" of the %s that the port has", rate(in.Line))
	}
	if moving >= idle {
		return Verdict{Wire, moving, text + "; " + work}
	}
	return Verdict{Cause: Unknown, Evidence: text + "; " + work}
}
