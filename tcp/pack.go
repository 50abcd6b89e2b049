package tcp

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"pdlink/transport"
	"pdlink/transport/codec"
	"pdlink/transport/wire"
)

// packing is what the lanes of a connection share that agreed on codecs.
type packing struct {
	governor *codec.Governor
	takes    []codec.ID // that were agreed
	every    int        // frames of a lane between two looks at whether the governor still rests
	checked  bool       // pieces carry sums, so that a payload that cannot be decoded is damaged like any other
}

// packer codes the payloads of a lane, one goroutine at a time, and unpacker decodes
// them, one too.
//
// Each has memory beside the ring while its lane codes, or gets coded frames: packer at
// the most codec.Room of a frame's payload, unpacker as much, and each less than 1 MiB
// for its codec. It is given back when the governor rests, or plainFrames have come.
type packer struct {
	*packing
	enc     codec.Encoder
	head    [wire.MaxHeader]byte // of the packed frame
	payload []byte               // its payload; grows to what the largest needs
	passed  int                  // frames since the last look at whether the governor still rests

	coding      time.Duration // of the frame at hand
	coded       codec.ID      // of the same
	raw, stored int           // of the same

	last outcome // of the frame that was written last
}

type unpacker struct {
	*packing
	dec     codec.Decoder
	payload []byte // of the packed frame that is read; grows to the largest
	plains  int    // frames in a row that were not packed, while there is a payload

	coded codec.ID // of the frame at hand
	raw   int      // of the same

	last outcome // of the frame that was read last
}

// outcome is what a codec made of a frame. It may be read while the lane goes on: a
// fault wrapper has other callers than the session.
type outcome struct{ v atomic.Uint64 }

func (o *outcome) set(id codec.ID, raw, stored int) { o.v.Store(uint64(raw-stored)<<8 | uint64(id)) }

func (o *outcome) get() (saved int, codecName string) {
	v := o.v.Load()
	return int(v >> 8), codec.ID(v & 0xff).Name()
}

// clear is set(None), which a frame that nobody looks at need not pay for twice.
func (o *outcome) clear() {
	if o.v.Load() != 0 {
		o.v.Store(0)
	}
}

// rests reports whether the governor wants nothing of the frame at hand, which then
// goes as it is. That costs two atomic loads, and now and then a look at the clock.
func (p *packer) rests() bool {
	if !p.governor.Resting() {
		return false
	}
	if p.passed++; p.passed >= p.every {
		p.passed = 0
		if !p.governor.Rest(time.Now()) {
			return false
		}
	}
	if p.payload != nil {
		p.payload, p.enc = nil, codec.Encoder{}
	}
	p.last.clear()
	return true
}

// pack returns the frame as it goes on the wire, valid until the next call.
func (p *packer) pack(header, payload []byte) (head, body []byte) {
	p.coding, p.coded, p.raw, p.stored = 0, codec.None, len(payload), len(payload)
	id, try := p.governor.Next(len(payload))
	if id == codec.None && len(try) == 0 {
		return header, payload
	}
	begin := time.Now()
	p.grow(codec.Room(len(payload)))
	if len(try) > 0 {
		id = p.try(try, payload)
	}
	n := 0
	if id != codec.None {
		n = p.enc.Encode(id, p.payload, payload)
	}
	p.coding = time.Since(begin)
	if n == 0 {
		return header, payload
	}
	head = p.head[:copy(p.head[:], header)]
	if wire.Pack(head, uint8(id), n) != nil { // a codec gains something, or says that it does not
		return header, payload
	}
	p.coded, p.stored = id, n
	return head, p.payload[:n]
}

// try measures codecs on a payload. Each is warmed up on a part of it.
func (p *packer) try(ids []codec.ID, payload []byte) codec.ID {
	for _, id := range ids {
		p.enc.Encode(id, p.payload, payload[:len(payload)/8])
		begin := time.Now()
		n := p.enc.Encode(id, p.payload, payload)
		p.governor.Try(id, len(payload), n, time.Since(begin))
	}
	return p.governor.Tried(time.Now())
}

func (p *packer) grow(n int) {
	if len(p.payload) < n {
		p.payload = make([]byte, n)
	}
}

// wrote tells the governor of the frame at hand, which was begun at a time.
func (p *packer) wrote(begin time.Time) {
	now := time.Now()
	p.last.set(p.coded, p.raw, p.stored)
	p.governor.Wrote(p.raw, p.stored, p.coding, now.Sub(begin)-p.coding, now)
}

// plain turns the header of the frame that is to be read into that of the plain frame
// and returns the codec of the payload. The error Is ErrProtocol.
func (u *unpacker) plain(header []byte, stored int) (codec.ID, error) {
	id, raw := wire.Unpack(header)
	if id != 0 && !slices.Contains(u.takes, codec.ID(id)) {
		return codec.None, wire.Violation("frame packed by %v, which was not agreed", codec.ID(id))
	}
	u.coded, u.raw = codec.ID(id), raw
	u.last.set(u.coded, raw, stored)
	if u.coded != codec.None {
		u.plains = 0
	} else if u.payload != nil {
		if u.plains++; u.plains == plainFrames {
			u.payload, u.dec, u.plains = nil, codec.Decoder{}, 0
		}
	}
	return u.coded, nil
}

// room is the memory for the payload of a packed frame, no more than a frame's.
func (u *unpacker) room(n int) []byte {
	if len(u.payload) < n {
		u.payload = make([]byte, n)
	}
	return u.payload[:n]
}

// unpack decodes a payload. Where pieces have sums a damaged one gives anything: the
// sums tell, and the peer sends it again. Else the error ends the connection.
func (u *unpacker) unpack(payload, stored []byte) error {
	err := u.dec.Decode(u.coded, payload, stored)
	if err != nil && !u.checked {
		return fmt.Errorf("%w: %w", transport.ErrProtocol, err)
	}
	return nil
}

// codecFeatures are what the hellos of a link with this mode name: what it decodes.
func codecFeatures(m codec.Mode) []string {
	if m == codec.Off {
		return nil
	}
	names := make([]string, 0, len(codec.All()))
	for _, id := range codec.All() {
		names = append(names, wire.FeatureCodec(id.String()))
	}
	return names
}

// agreedCodecs are the codecs that both ends named.
func agreedCodecs(features []string) (ids []codec.ID) {
	for _, id := range codec.All() {
		if slices.Contains(features, wire.FeatureCodec(id.String())) {
			ids = append(ids, id)
		}
	}
	return ids
}

// newPacking is what a connection with these features has, whose lanes are d's; nil: no
// codec was agreed.
func (l *Link) newPacking(features []string, sum string, d *driver, c addressed) *packing {
	ids := agreedCodecs(features)
	if len(ids) == 0 {
		return nil
	}
	m := l.o.Compress
	if m == codec.Auto && within(c) {
		m = codec.Off // there is no wire
	}
	return &packing{
		governor: codec.NewGovernor(m, ids, codec.Place{
			Lanes: len(d.lanes), Cores: runtime.GOMAXPROCS(0), Meter: &l.meter, Delivered: d.delivered,
		}),
		takes:   ids,
		every:   max(leastFrames, restFrames/len(d.lanes)),
		checked: sum != transport.SumNone,
	}
}

// codecNames are the codecs of a connection, for its facts.
func codecNames(features []string) string {
	ids := agreedCodecs(features)
	names := make([]string, 0, len(ids))
	for _, id := range ids {
		names = append(names, id.String())
	}
	return strings.Join(names, ",")
}

// addressed is the part of a socket that says where it leads.
type addressed interface {
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
}

// within reports whether a socket does not leave the host: both ends have one address.
func within(c addressed) bool {
	local, err := netip.ParseAddrPort(c.LocalAddr().String())
	remote, e := netip.ParseAddrPort(c.RemoteAddr().String())
	return err != nil || e != nil || local.Addr().Unmap() == remote.Addr().Unmap()
}
