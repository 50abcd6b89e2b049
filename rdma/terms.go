package rdma

import (
	"fmt"

	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
)

// terms are what the two ends of a connection agreed on. Both hold the same.
type terms struct {
	mode       mode
	kind       verbs.QPKind
	lanes      int
	slots      int // of frames on each lane, or messages in stride mode
	maxPayload int
	epoch      uint32
	mtu        verbs.MTU
	reads      [2]uint8 // READs that this end takes, and sends, at a time
	immediate  bool     // immediates are to be tried
	linkLocal  bool     // one end has a link-local address only
}

// agree draws the terms from what both ends offered.
func agree(mine, peer *offer) (terms, error) {
	t := terms{
		lanes: int(min(mine.lanes, peer.lanes)), slots: int(min(mine.slots, peer.slots)),
		mtu: min(mine.mtu, peer.mtu), linkLocal: mine.linkLocal || peer.linkLocal,
	}
	reliable, unreliable := mine.rc && peer.rc, mine.uc && peer.uc
	both := mine.modes & peer.modes
	switch {
	case reliable && both&push != 0:
		t.mode, t.kind, t.reads = push, verbs.RC, [2]uint8{readsPush, readsPush}
		t.immediate = mine.immediate && peer.immediate
	case reliable && both&pull != 0:
		t.mode, t.kind = pull, verbs.RC
		t.reads = [2]uint8{
			min(readsPull, mine.readsIn, peer.readsOut), min(readsPull, mine.readsOut, peer.readsIn),
		}
		if min(t.reads[0], t.reads[1]) == 0 {
			return t, fmt.Errorf("%w: frames would be read, and of READs at a time this end takes %d and sends %d, the other end takes %d and sends %d",
				transport.ErrIncompatible, mine.readsIn, mine.readsOut, peer.readsIn, peer.readsOut)
		}
	case both&stride != 0 && (reliable || unreliable):
		t.mode, t.kind, t.reads = stride, verbs.UC, [2]uint8{readsPush, readsPush}
		t.slots = int(min(mine.strides, peer.strides))
		if !unreliable {
			t.kind = verbs.RC
		}
	default:
		return t, fmt.Errorf("%w: devices of class %s and %s have no way in common to move frames", transport.ErrIncompatible, mine.class, peer.class)
	}
	return t, nil
}

// width is how many frames, or messages, may be on their way in a send queue of so many
// requests: at least one. Errors: transport.ErrUnavailable where there is no room for one.
func (t *terms) width(sends int) (uint64, error) {
	each, besides := 1, 0
	switch t.mode {
	case push:
		each = frameWRs
	case pull:
		besides = 2 * readAhead // the reads of the other direction
	}
	if sends < besides+each {
		return 0, fmt.Errorf("%w: the device gives send queues of %d requests, %v mode needs %d", transport.ErrUnavailable, sends, t.mode, besides+each)
	}
	return uint64(min(t.slots, (sends-besides)/each)), nil
}

// access is what queue pairs and the memory that the peer uses are open to.
func (t *terms) access() verbs.Access {
	switch t.mode {
	case push:
		return verbs.AccessRemoteWrite
	case pull:
		return verbs.AccessRemoteRead
	}
	return 0
}
