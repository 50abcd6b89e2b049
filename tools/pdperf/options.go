package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"pdlink/transport"
	"pdlink/transport/session"
)

// sendOptions are what a sending end is asked for.
type sendOptions struct {
	block, frame size
	model        string // in place of block: the shapes of a model's blocks
	time, warmup time.Duration
	inFlight     int // blocks; with a model groups of them
	buffers      int // groups' worth of slots; 0: chosen by inFlight
	lanes        int
	sum          string
	presummed    bool
	direction    string

	shape shape // by check
}

// check refuses what cannot be run and fills what was left open.
func (o *sendOptions) check() error {
	block, frame := int64(o.block), int64(o.frame)
	switch {
	case o.direction != push && o.direction != pull && o.direction != both:
		return fmt.Errorf("--direction %q: want push, pull or both", o.direction)
	case o.model == "" && (block < unit || block > maxBlock || block%unit != 0):
		return fmt.Errorf("--size %s: want a multiple of %d from %d to %s", sizeText(block), unit, unit, sizeText(maxBlock))
	case o.inFlight < 1 || o.inFlight > maxInFlight:
		return fmt.Errorf("--in-flight %d: want 1 to %d", o.inFlight, maxInFlight)
	case o.lanes < 0:
		return fmt.Errorf("--lanes %d: want 1 or more", o.lanes)
	case o.time <= 0 || o.time > maxRun || o.warmup < 0 || o.warmup > maxRun:
		return fmt.Errorf("--time %v --warmup %v: want times up to %v", o.time, o.warmup, maxRun)
	}
	if err := checkFrame(frame); err != nil {
		return err
	}
	o.shape = plainShape(max(block, 0), frame)
	if o.model != "" {
		var err error
		if o.shape, err = modelShape(o.model, frame); err != nil {
			return err
		}
	}
	if most := maxOpen / o.shape.group; o.inFlight > most {
		return fmt.Errorf("--in-flight %d of %d blocks each: want 1 to %d", o.inFlight, o.shape.group, most)
	}
	return errors.Join(o.checkBuffers(), checkSum(o.sum))
}

// checkBuffers sees to it that what is in flight has room.
func (o *sendOptions) checkBuffers() error {
	// Twice what is in flight, so that damaged pieces find a slot, and more.
	least := 2*o.inFlight + 1
	if o.buffers == 0 {
		o.buffers = least
		if o.shape.bytes() < defaultGroup {
			o.buffers = max(minBuffers, least)
		}
	}
	group, frame := int64(o.shape.bytes()), int64(o.frame)
	switch {
	case o.buffers < least:
		return fmt.Errorf("--buffers %d: %d blocks in flight need at least %d", o.buffers, o.inFlight, least)
	case int64(o.buffers) > maxMemory/max(group, frame):
		return fmt.Errorf("--buffers %d of %s: more than %s", o.buffers, sizeText(group), sizeText(maxMemory))
	case o.slots() > maxSlots:
		return fmt.Errorf("--buffers %d: %d frames of %s, a ring has at most %d: use a larger --frame", o.buffers, o.slots(), sizeText(frame), maxSlots)
	}
	return nil
}

// slots is how many frames o.buffers groups are.
func (o *sendOptions) slots() int { return o.buffers * len(o.shape.frames) }

// leastSlots is how many frames what is in flight needs.
func (o *sendOptions) leastSlots() int { return (2*o.inFlight + 1) * len(o.shape.frames) }

// maxSlots is the largest ring.
const maxSlots = 1 << 16

// receiveOptions are what a receiving end is asked for.
type receiveOptions struct {
	frame  size
	slots  int
	window int
	hold   int
	lanes  int
	sum    string
	back   int // frames to send from, where the other end asks for it
}

// register adds the receiver's flags; local has those of both ends, where one
// flag serves both.
func (o *receiveOptions) register(c *cobra.Command, shared bool) {
	o.frame = defaultFrame
	fl := c.Flags()
	fl.IntVar(&o.slots, "ring", defaultSlots, "frames of memory to receive into")
	fl.IntVar(&o.window, "window", transport.DefaultWindow, "frames granted ahead of what was taken")
	fl.IntVar(&o.hold, "hold", 0, "frames to keep before giving their memory back, so that more of the ring is used; less than the window")
	if shared {
		return
	}
	fl.IntVar(&o.back, "send-ring", defaultBack, "frames of memory to send from where the other end pulls; taken when it first does; 0: it may not")
	fl.Var(&o.frame, "frame", "payload bytes of a frame, the most that the link takes at once")
	fl.IntVar(&o.lanes, "lanes", serveLanes, "data lanes; the smaller wish of the two ends counts")
	fl.StringVar(&o.sum, "sum", "", "only this checksum of pieces: "+strings.Join(transport.Sums(), ", "))
}

// serveLanes is the default of a receiving end: the sender's wish counts.
const serveLanes = 16

func (o *receiveOptions) check() error {
	if err := checkFrame(int64(o.frame)); err != nil {
		return err
	}
	switch {
	case o.slots < 2 || o.slots > maxSlots || int64(o.slots)*int64(o.frame) > maxMemory:
		return fmt.Errorf("--ring %d frames of %s: want 2 frames to %s", o.slots, sizeText(int64(o.frame)), sizeText(maxMemory))
	case o.window < 1 || o.window > o.slots:
		return fmt.Errorf("--window %d: want 1 to the %d frames of the ring", o.window, o.slots)
	case o.back < 0 || o.back == 1 || o.back > maxSlots || int64(o.back)*int64(o.frame) > maxMemory:
		return fmt.Errorf("--send-ring %d frames of %s: want 0, or 2 frames to %s", o.back, sizeText(int64(o.frame)), sizeText(maxMemory))
	case o.hold < 0 || o.hold >= o.window:
		return fmt.Errorf("--hold %d: want less than the window of %d, or nothing would be granted", o.hold, o.window)
	}
	return checkSum(o.sum)
}

// checkFrame makes sure that a slot can carry frames of that payload.
func checkFrame(frame int64) error {
	const most = transport.MaxSlot - transport.HeaderRoom
	if frame < transport.HeaderRoom || frame > most || frame%transport.HeaderRoom != 0 {
		return fmt.Errorf("--frame %s: want a multiple of %s up to %s", sizeText(frame), sizeText(transport.HeaderRoom), sizeText(most))
	}
	return nil
}

func checkSum(name string) error {
	if name == "" || slices.Contains(transport.Sums(), name) {
		return nil
	}
	return fmt.Errorf("--sum %q: this build has %s", name, strings.Join(transport.Sums(), ", "))
}

// wishedSums is what a --sum means for a session: nothing for the default.
func wishedSums(name string) []string {
	if name == "" {
		return nil
	}
	return []string{name}
}

// recvRing makes the ring of a receiving end. A transfer gets at most half of a
// ring, so that there is always room for another one.
func (o *receiveOptions) recvRing() (*transport.Ring, error) {
	return newRing(max(o.slots, 2*o.window), o.frame)
}

// newRing makes a ring for frames of that payload.
func newRing(slots int, frame size) (*transport.Ring, error) {
	return transport.NewRing(slots, int(frame)+transport.HeaderRoom)
}

// idleRing is the ring of the direction that nothing is sent in. It says how
// large frames may be and takes no memory until it is used.
func idleRing(frame size) (*transport.Ring, error) { return newRing(2, frame) }

// rings are those of a sending end: what it sends from, and what it receives into where
// it pulls.
func (o *sendOptions) rings() (send, recv *transport.Ring, err error) {
	slots, back := o.slots(), 2
	if o.direction == pull {
		slots = 2
	}
	if o.direction != push {
		back = defaultSlots
	}
	if send, err = newRing(slots, o.frame); err != nil {
		return nil, nil, err
	}
	if recv, err = newRing(back, o.frame); err != nil {
		return nil, nil, err
	}
	if o.direction != push {
		recv.Touch()
	}
	return send, recv, nil
}

// session is the session of a sending end.
func (o *sendOptions) session(send, recv *transport.Ring) session.Options {
	return session.Options{Name: "pdperf run", SendRing: send, RecvRing: recv, Lanes: o.lanes, Sums: wishedSums(o.sum)}
}

// session is the session of a receiving end.
func (o *receiveOptions) session(recv, send *transport.Ring) session.Options {
	return session.Options{
		Name: "pdperf serve", SendRing: send, RecvRing: recv, Lanes: o.lanes, Sums: wishedSums(o.sum), Window: o.window,
	}
}

// sendRing is the ring that a receiving end sends from, and the sender of it; nil where
// it does not send.
func (o *receiveOptions) sendRing() (*transport.Ring, *sender, error) {
	if o.back == 0 {
		idle, err := idleRing(o.frame)
		return idle, nil, err
	}
	ring, err := newRing(o.back, o.frame)
	if err != nil {
		return nil, nil, err
	}
	return ring, newSender(ring), nil
}
