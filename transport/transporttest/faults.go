package transporttest

import (
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// ErrInjected is wrapped by every error that Faults makes up.
var ErrInjected = errors.New("transporttest: injected fault")

// Site says which bytes a corruption hits.
type Site int

// Sites of a corruption, as the end that has the Faults sees them.
const (
	SentHeader   Site = iota // header of a frame that is sent
	SentPayload              // payload of a frame that is sent
	SentControl              // a control message that is sent, its prefix included
	TakenControl             // a control message that is received, its prefix included
	sites
)

// Faults stands between the session and the driver of one connection's end and
// does damage when told to. Its Intercept is a session.Interceptor. All methods
// may be called concurrently, before and after the connection is made; without
// any call it changes nothing.
type Faults struct {
	mu      sync.Mutex // guards what follows
	rng     *rand.Rand
	cutIn   int64 // bytes until the cut; negative: never
	delay   time.Duration
	short   bool // the next frame is truncated
	hole    bool // nothing passes any more
	halved  bool // the next read says that the peer ended its direction
	deaf    bool // nothing that is sent passes any more
	corrupt [sites][]corruption
	hits    int // corruptions that were done
	hooks   Hooks
	driver  *faultDriver
}

// corruption is one flipped bit of a message: skip messages pass before it.
type corruption struct{ skip, at int }

// Hooks see what passes and may change it. A hook is called by the goroutine
// that moves the message, returns what is to be moved instead (nil: nothing),
// and may keep nothing of it. A nil hook passes all.
type Hooks struct {
	SendControl func(msg []byte) []byte
	TakeControl func(msg []byte) []byte
	SendFrame   func(header []byte) (pass bool)
}

// NewFaults returns faults whose random choices depend on seed.
func NewFaults(seed uint64) *Faults {
	return &Faults{rng: newRand(seed), cutIn: -1}
}

// CutAfter ends the connection once n more bytes have passed in either
// direction, wherever in a header, a payload or a message that is.
func (f *Faults) CutAfter(n int) { f.set(func() { f.cutIn = int64(max(n, 0)) }) }

// Delay pauses every send by up to d.
func (f *Faults) Delay(d time.Duration) { f.set(func() { f.delay = d }) }

// Truncate sends only a part of the next frame's payload and then ends the
// connection.
func (f *Faults) Truncate() { f.set(func() { f.short = true }) }

// Corrupt flips a bit of byte at (modulo the length; negative: a random byte)
// of one message of site, after skip others have passed.
func (f *Faults) Corrupt(site Site, skip, at int) {
	f.set(func() { f.corrupt[site] = append(f.corrupt[site], corruption{skip, at}) })
}

// Corrupted is how many bits were flipped so far for Corrupt.
func (f *Faults) Corrupted() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hits
}

// HalfClose makes the peer's direction end in order at the next thing that is
// received; this end can still send.
func (f *Faults) HalfClose() { f.set(func() { f.halved = true }) }

// Deafen drops all that this end sends from now on, without an error.
func (f *Faults) Deafen() { f.set(func() { f.deaf = true }) }

// BlackHole drops everything in both directions, without an error, until the
// end is closed.
func (f *Faults) BlackHole() { f.set(func() { f.hole, f.deaf = true, true }) }

// Hook sets hooks in place of earlier ones.
func (f *Faults) Hook(h Hooks) { f.set(func() { f.hooks = h }) }

// Cut ends the connection now.
func (f *Faults) Cut() {
	f.mu.Lock()
	d := f.driver
	f.mu.Unlock()
	if d != nil {
		d.cut()
	}
}

func (f *Faults) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// Intercept puts the faults in front of d. It is for one connection.
func (f *Faults) Intercept(d session.Driver) session.Driver {
	w := &faultDriver{Driver: d, f: f, lanes: make([]lane, d.Lanes())}
	f.set(func() { f.driver = w })
	return w
}

// SendControl sends a message of the caller's between those of the session. It
// fails before the connection is made.
func (f *Faults) SendControl(msg []byte) error {
	d, err := f.raw()
	if err != nil {
		return err
	}
	d.control.Lock()
	defer d.control.Unlock()
	return d.Driver.WriteControl(msg)
}

// SendFrame sends a frame of the caller's on lane 0, between those of the
// session. It fails before the connection is made.
func (f *Faults) SendFrame(header, payload []byte) error {
	d, err := f.raw()
	if err != nil {
		return err
	}
	d.lanes[0].sending.Lock()
	defer d.lanes[0].sending.Unlock()
	return d.Driver.WriteFrame(0, header, payload)
}

func (f *Faults) raw() (*faultDriver, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.driver == nil {
		return nil, errors.New("transporttest: no connection yet")
	}
	return f.driver, nil
}

// faultDriver is a driver with faults in front.
type faultDriver struct {
	session.Driver
	f       *Faults
	once    sync.Once
	closing error
	control sync.Mutex // held while a control message is written
	lanes   []lane
}

type lane struct {
	sending sync.Mutex // held while a frame is written
	header  []byte     // damaged copies
	payload []byte
}

func (d *faultDriver) cut() { d.Close() } //nolint:errcheck // Close of the session reports it

// Close closes the driver once, however often it is called.
func (d *faultDriver) Close() error {
	d.once.Do(func() { d.closing = d.Driver.Close() })
	return d.closing
}

// spend takes n bytes from what may still pass and returns how many of them
// do, and whether the connection is cut after them.
func (f *Faults) spend(n int) (pass int, cut bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cutIn < 0 {
		return n, false
	}
	if f.cutIn >= int64(n) {
		f.cutIn -= int64(n)
		return n, false
	}
	pass, f.cutIn = int(f.cutIn), 0
	return pass, true
}

// damage returns p, or a copy in buf with a flipped bit.
func (f *Faults) damage(site Site, p []byte, buf *[]byte) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := f.corrupt[site]
	if len(list) == 0 || len(p) == 0 {
		return p
	}
	if list[0].skip > 0 {
		list[0].skip--
		return p
	}
	at := list[0].at
	if at < 0 {
		at = f.rng.IntN(len(p))
	}
	f.corrupt[site] = list[1:]
	f.hits++
	*buf = append((*buf)[:0], p...)
	(*buf)[at%len(p)] ^= 1 << f.rng.IntN(8)
	return *buf
}

// state is what decides about one send or receive.
func (f *Faults) state() (pause time.Duration, deaf, hole, halved bool, h Hooks) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.delay > 0 {
		pause = time.Duration(f.rng.Int64N(int64(f.delay)))
	}
	return pause, f.deaf, f.hole, f.halved, f.hooks
}

// WriteControl implements session.Driver.
func (d *faultDriver) WriteControl(msg []byte) error {
	pause, deaf, _, _, hooks := d.f.state()
	time.Sleep(pause)
	if hooks.SendControl != nil {
		msg = hooks.SendControl(msg)
	}
	if deaf || msg == nil {
		return nil
	}
	if _, cut := d.f.spend(len(msg)); cut {
		d.cut()
		return ErrInjected
	}
	var buf []byte
	msg = d.f.damage(SentControl, msg, &buf)
	d.control.Lock()
	defer d.control.Unlock()
	return d.Driver.WriteControl(msg)
}

// ReadControl implements session.Driver.
func (d *faultDriver) ReadControl() ([]byte, error) {
	for {
		msg, err := d.Driver.ReadControl()
		if err != nil {
			return nil, err
		}
		_, _, hole, halved, hooks := d.f.state()
		if halved {
			return nil, io.EOF
		}
		if hooks.TakeControl != nil {
			msg = hooks.TakeControl(msg)
		}
		if hole || msg == nil {
			continue
		}
		if _, cut := d.f.spend(len(msg)); cut {
			d.cut()
			return nil, ErrInjected
		}
		var buf []byte
		return d.f.damage(TakenControl, msg, &buf), nil
	}
}

// WriteFrame implements session.Driver.
func (d *faultDriver) WriteFrame(n int, header, payload []byte) error {
	pause, deaf, _, _, hooks := d.f.state()
	time.Sleep(pause)
	if deaf || hooks.SendFrame != nil && !hooks.SendFrame(header) {
		return nil
	}
	if _, cut := d.f.spend(len(header) + len(payload)); cut {
		d.cut()
		return ErrInjected
	}
	l := &d.lanes[n]
	l.sending.Lock()
	defer l.sending.Unlock()
	header = d.f.damage(SentHeader, header, &l.header)
	payload = d.f.damage(SentPayload, payload, &l.payload)
	if keep, short := d.f.shorten(len(payload)); short {
		d.Driver.WriteFrame(n, header, payload[:keep]) //nolint:errcheck // ends by the cut
		d.cut()
		return ErrInjected
	}
	return d.Driver.WriteFrame(n, header, payload)
}

func (f *Faults) shorten(n int) (keep int, short bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.short || n == 0 {
		return n, false
	}
	f.short = false
	return f.rng.IntN(n), true
}

// ReadFrame implements session.Driver. A cut inside the payload leaves memory
// that is partly written, as a broken socket does.
func (d *faultDriver) ReadFrame(n int, header []byte, place session.Placer) (int, error) {
	for {
		var payload, scratch []byte
		keep, cut := 0, false
		length, err := d.Driver.ReadFrame(n, header, func(h []byte) ([]byte, error) {
			_, size, err := wire.FrameLength(h, transport.MaxSlot)
			if err != nil {
				return place(h) // whoever checks headers refuses it
			}
			if _, _, hole, _, _ := d.f.state(); hole {
				scratch = make([]byte, size)
				return scratch, nil
			}
			keep, cut = d.f.spend(len(h) + size)
			if keep -= len(h); cut && keep < 0 {
				return nil, ErrInjected // cut inside the header
			}
			payload, err = place(h)
			return payload, err
		})
		_, _, _, halved, _ := d.f.state()
		switch {
		case cut:
			for i := max(keep, 0); i < len(payload); i++ {
				payload[i] = 0xdb
			}
			d.cut()
			return 0, ErrInjected
		case err == nil && halved:
			return 0, io.EOF
		case err == nil && scratch != nil:
			continue
		}
		return length, err
	}
}
