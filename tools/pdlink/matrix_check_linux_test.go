//go:build faults

package main

import (
	"encoding/json"
	"strings"
)

// settle waits for the senders. None may give up when everybody came back; one that
// does is started again, as whoever runs it would, to see whether it completes then.
func (r *matrixRun) settle() {
	for i := range r.senders {
		for r.senders[i].wait() != exitOK && !r.fault.gone && r.result.Reruns < mostReruns {
			r.Errorf("a sender gave up although everybody came back: %v", r.senders[i])
			r.result.Reruns++
			r.senders[i] = r.startSender(r.relays[i], i)
		}
	}
}

// honest checks what the senders say against what is there.
func (r *matrixRun) honest(visible int) {
	total := len(r.plan.want.hashes)
	for _, s := range r.senders {
		status := s.wait()
		if why := s.crashed(); why != "" {
			r.Error(why)
		}
		if strings.Contains(s.err.String(), "--timeout") {
			r.Errorf("sender hung: %v", s)
		}
		var left leftEvent
		if lines := s.err.events("left"); len(lines) == 1 && json.Unmarshal(lines[0], &left) == nil {
			if why := left.leak(); why != "" {
				r.Errorf("sender leaks %s", why)
			}
		} else if status != -1 {
			r.Errorf("sender ended with status %d and no word of what it left: %v", status, s)
		}
		var res replayResult
		text := s.out.String()
		switch {
		case text == "" && status == -1: // killed
			continue
		case json.Unmarshal([]byte(text), &res) != nil:
			r.Errorf("sender ended with status %d and no result: %v", status, s)
			continue
		}
		complete := res.State == "complete"
		if res.Total != total || res.Blocks > visible || complete != (res.Blocks == total) || (status == exitOK) != complete {
			r.Errorf("sender says %q with status %d, %d of %d blocks are visible: %v", res.Verdict, status, visible, total, s)
		}
		if !complete && res.Reason == "" {
			r.Errorf("sender gives no reason: %v", s)
		}
		if res.State == "partial" && len(r.fault.why) > 0 && !containsAny(res.Reason, r.fault.why) {
			r.Errorf("sender's verdict %q does not name the cause, one of %q", res.Verdict, r.fault.why)
		}
	}
}

func containsAny(text string, words []string) bool {
	for _, w := range words {
		if strings.Contains(text, w) {
			return true
		}
	}
	return false
}

// blockBytes is about what a block takes on the wire.
func (r *matrixRun) blockBytes() int64 {
	return (r.clean.dialler - r.clean.handshake) / int64(len(r.plan.want.hashes))
}

// frameBytes is about what the frame of one chunk takes.
func (r *matrixRun) frameBytes() int64 {
	n := r.blockBytes() * int64(r.plan.chunk) / int64(r.plan.block)
	return n + n/4 // chunks are not all alike
}

// count holds what the senders sent against what was missing. What a connection
// loses is what was under way, at most the receiver's window; what a receiver loses
// that goes is what it had of blocks that were not whole.
func (r *matrixRun) count() {
	for _, link := range r.relays {
		r.result.Again += link.opened.Load()
	}
	r.result.Again = max(0, (r.result.Again+socketsEach-1)/socketsEach-int64(r.parts))
	r.result.Extra = max(0, r.sent()-r.clean.dialler)
	perLink := r.clean.handshake + windowSlack
	window := int64(r.ring)<<20 + perLink
	if r.ring < roomyRing {
		window = min(window, int64(r.parts)*fewFrames*r.frameBytes()+perLink)
	}
	r.result.Allowed = int64(r.parts-1)*perLink + r.result.Again*window + r.lost + r.repeats()
	if r.result.Extra > r.result.Allowed {
		r.Errorf("senders sent %d bytes beside the %d of a transfer without fault, at most %d of them can have been lost: %d connections",
			r.result.Extra, r.clean.dialler, r.result.Allowed, r.result.Again+int64(r.parts))
	}
}

// repeats is what damage on the way costs that costs no connection: the frame.
func (r *matrixRun) repeats() int64 {
	if r.fault.bytes == nil {
		return windowSlack
	}
	return windowSlack + r.frameBytes()
}

// sent is how many bytes came from senders.
func (r *matrixRun) sent() (n int64) {
	for _, link := range r.relays {
		n += link.dialler.Load()
	}
	return n
}

// again runs the transfer once more when all is well: it must become complete, and
// nothing is sent of blocks that are visible.
func (r *matrixRun) again() {
	if r.fault.mends != nil {
		r.fault.mends(r)
	}
	if r.receiver.ended() {
		r.startReceiver()
	}
	before := r.plan.want.check(r, r.store).visible
	var last *process
	ok := eventually(processLimit/2, func() bool {
		link := newRelay(r, r.receiver.addr, 0)
		defer link.close()
		whole := *r
		whole.parts, whole.fault = 1, matrixFault{}
		last = whole.startSender(link, 0)
		if last.wait() != exitOK {
			return false // what it replaces is not over yet, or the other part of it is awaited
		}
		missing := int64(len(r.plan.want.hashes)-before) * r.blockBytes()
		if sent := link.dialler.Load(); sent > missing+missing/8+r.clean.handshake+windowSlack {
			r.Errorf("the second run sent %d bytes although %d of %d blocks were there", sent, before, len(r.plan.want.hashes))
		}
		return true
	})
	if c := r.plan.want.check(r, r.store); !ok || c.visible != len(r.plan.want.hashes) {
		r.Errorf("second run: %d of %d blocks: %v", c.visible, len(r.plan.want.hashes), last)
	}
}
