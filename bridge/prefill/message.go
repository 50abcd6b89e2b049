package prefill

import (
	"encoding/binary"
	"fmt"
	"strings"

	"pdlink/transport"
)

// Sizes and numbers of PROTOCOL.md section 2.
const (
	messageSize  = 64
	bodyAt       = 16
	bodySize     = messageSize - bodyAt
	version      = 1
	messageMagic = "PDLE"
)

// msgType is the type of a message.
type msgType uint8

const (
	typeHello msgType = 1 + iota
	typeWelcome
	typeRefuse
	typeBegin
	typeBegun
	typeArray
	typeLease
	typeLeased
	typeCommit
	typeReturn
	typeEnd
	typeAbort
	typeSealed
	typeReclaim
	typeFacts
	numTypes
)

// code says why (section 6).
type code uint16

const (
	codeOK code = iota
	codeVersion
	codeInvalid
	codeUnknown
	codeBusy
	codeMemory
	codeLate
	codeOver
	codeStale
	codePlan
	codeDenied
	codeFailed
)

// String returns the reason for people.
func (c code) String() string {
	names := [...]string{
		"ok", "other version", "invalid", "unknown transfer", "too many at a time", "the host's free memory is below the floor",
		"no slot became free in time", "the transfer is over", "stale slot", "does not fit the plan", "user not allowed", "failed",
	}
	if int(c) >= len(names) {
		return fmt.Sprintf("code %d", uint16(c))
	}
	return names[c]
}

// Flags of HELLO and WELCOME, in the place of the code.
const (
	flagRing  code = 1 // of both: the ring is that of an earlier sidecar
	flagFacts code = 2 // of WELCOME: FACTS is understood
)

// notSealed is the sealed block of a transfer that is not.
const notSealed = 1<<32 - 1

// Kinds, modes and data types as the protocol numbers them.
const (
	kindKV   = 1
	kindDSV4 = 2

	modePieces = 1
	modeRows   = 2

	dtypeBF16 = 1
	dtypeF16  = 2
	dtypeF32  = 3

	whatK = 0
	whatV = 1
	whatX = 2
)

// message is one packet.
type message struct {
	typ    msgType
	code   code
	handle uint32
	body   [bodySize]byte
}

// appendTo appends the packet.
func (m *message) appendTo(dst []byte) []byte {
	dst = append(dst, messageMagic...)
	dst = append(dst, version, byte(m.typ))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(m.code))
	dst = binary.LittleEndian.AppendUint32(dst, m.handle)
	dst = append(dst, 0, 0, 0, 0)
	return append(dst, m.body[:]...)
}

// parseMessage reads a packet. Errors are breaches; one of another version
// is marked by versionError.
func parseMessage(p []byte) (message, error) {
	var m message
	switch {
	case len(p) != messageSize:
		return m, breach("packet of %d bytes, want %d", len(p), messageSize)
	case string(p[:4]) != messageMagic:
		return m, breach("packet begins with %x, want %x", p[:4], messageMagic)
	case p[4] != version:
		return m, versionError(p[4])
	case msgType(p[5]) == 0 || msgType(p[5]) >= numTypes:
		return m, breach("message of type %d", p[5])
	}
	m.typ = msgType(p[5])
	m.code = code(binary.LittleEndian.Uint16(p[6:]))
	m.handle = binary.LittleEndian.Uint32(p[8:])
	copy(m.body[:], p[bodyAt:])
	return m, nil
}

// versionError is the version of a worker that speaks another one.
type versionError uint8

func (v versionError) Error() string {
	return fmt.Sprintf("worker speaks version %d of the engine socket, this sidecar %d: install the same release on both sides", uint8(v), version)
}

// span is a range of layers or heads, without its end.
type span struct{ First, End uint32 }

// fields is the body of one type of message.
type fields interface {
	put(b *[bodySize]byte)
	get(b *[bodySize]byte)
}

// pack makes a message of fields.
func pack(t msgType, c code, handle uint32, f fields) message {
	m := message{typ: t, code: c, handle: handle}
	if f != nil {
		f.put(&m.body)
	}
	return m
}

func u16(b []byte) uint16        { return binary.LittleEndian.Uint16(b) }
func u32(b []byte) uint32        { return binary.LittleEndian.Uint32(b) }
func u64(b []byte) uint64        { return binary.LittleEndian.Uint64(b) }
func put16(b []byte, v uint16)   { binary.LittleEndian.PutUint16(b, v) }
func put32(b []byte, v uint32)   { binary.LittleEndian.PutUint32(b, v) }
func put64(b []byte, v uint64)   { binary.LittleEndian.PutUint64(b, v) }
func getSpan(b []byte) span      { return span{u32(b), u32(b[4:])} }
func putSpan(b []byte, s span)   { put32(b, s.First); put32(b[4:], s.End) }
func getText(b []byte) string    { return printable(strings.TrimRight(string(b), "\x00")) }
func putText(b []byte, s string) { copy(b, printable(s)) }

// printable replaces what is not printable ASCII: texts are for logs.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}

// hello introduces a worker.
type hello struct {
	Instance                     transport.ID
	TPRank, TPSize, LocalWorkers uint16
	Layers, Heads                span
	PID                          uint32
}

func (h *hello) put(b *[bodySize]byte) {
	copy(b[0:16], h.Instance[:])
	put16(b[16:], h.TPRank)
	put16(b[18:], h.TPSize)
	put16(b[20:], h.LocalWorkers)
	putSpan(b[24:], h.Layers)
	putSpan(b[32:], h.Heads)
	put32(b[40:], h.PID)
}

func (h *hello) get(b *[bodySize]byte) {
	*h = hello{
		Instance: transport.ID(b[0:16]), TPRank: u16(b[16:]), TPSize: u16(b[18:]), LocalWorkers: u16(b[20:]),
		Layers: getSpan(b[24:]), Heads: getSpan(b[32:]), PID: u32(b[40:]),
	}
}

// check reports a worker that cannot be.
func (h *hello) check() error {
	switch {
	case h.Instance == transport.ID{}:
		return breach("instance is zero")
	case h.TPSize < 1 || h.TPRank >= h.TPSize || h.LocalWorkers < 1 || h.LocalWorkers > maxWorkers:
		return breach("rank %d of %d, %d workers on this host", h.TPRank, h.TPSize, h.LocalWorkers)
	case h.Layers.First > h.Layers.End || h.Heads.First > h.Heads.End:
		return breach("layers [%d,%d), heads [%d,%d)", h.Layers.First, h.Layers.End, h.Heads.First, h.Heads.End)
	}
	return nil
}

// welcome describes the ring.
type welcome struct {
	Ring              transport.ID
	Size              uint64
	Slots, SlotSize   uint32
	FirstSlot         uint64
	RecordSize, Waits uint32
}

func (w *welcome) put(b *[bodySize]byte) {
	copy(b[0:16], w.Ring[:])
	put64(b[16:], w.Size)
	put32(b[24:], w.Slots)
	put32(b[28:], w.SlotSize)
	put64(b[32:], w.FirstSlot)
	put32(b[40:], w.RecordSize)
	put32(b[44:], w.Waits)
}

func (w *welcome) get(b *[bodySize]byte) {
	*w = welcome{
		Ring: transport.ID(b[0:16]), Size: u64(b[16:]), Slots: u32(b[24:]), SlotSize: u32(b[28:]),
		FirstSlot: u64(b[32:]), RecordSize: u32(b[40:]), Waits: u32(b[44:]),
	}
}

// text is the body of REFUSE and ABORT.
type text string

func (t *text) put(b *[bodySize]byte) { putText(b[:], string(*t)) }
func (t *text) get(b *[bodySize]byte) { *t = text(getText(b[:])) }
