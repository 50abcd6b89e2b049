package wire

import (
	"encoding/binary"
	"fmt"

	"pdlink/transport"
)

// Type is the type of a control message (section 3.2).
type Type uint8

// Types of control messages. The numbers are part of the protocol.
const (
	TypeHello     Type = 1
	TypeLaneHello Type = 2
	TypeLaneOK    Type = 3
	TypeBye       Type = 4
	TypePing      Type = 5
	TypePong      Type = 6

	TypeOpen    Type = 16
	TypeAdmit   Type = 17
	TypeRefuse  Type = 18
	TypeGrant   Type = 19
	TypeAck     Type = 20
	TypeNack    Type = 21
	TypeFlush   Type = 22
	TypeFlushed Type = 23
	TypeFinish  Type = 24
	TypeResult  Type = 25
	TypeCancel  Type = 26

	// FirstLink and LastLink bound the types of link messages (section 11).
	FirstLink Type = 32
	LastLink  Type = 47
)

// OfLink reports whether t is the type of a link message, see [Link].
func (t Type) OfLink() bool { return FirstLink <= t && t <= LastLink }

// FlagOptional marks a message that an end which does not know its type skips.
const FlagOptional = 1 << 0

// String returns the message's name.
func (t Type) String() string {
	switch t {
	case TypeHello:
		return "hello"
	case TypeLaneHello:
		return "lane hello"
	case TypeLaneOK:
		return "lane ok"
	case TypeBye:
		return "bye"
	case TypePing:
		return "ping"
	case TypePong:
		return "pong"
	case TypeOpen:
		return "open"
	case TypeAdmit:
		return "admit"
	case TypeRefuse:
		return "refuse"
	case TypeGrant:
		return "grant"
	case TypeAck:
		return "ack"
	case TypeNack:
		return "nack"
	case TypeFlush:
		return "flush"
	case TypeFlushed:
		return "flushed"
	case TypeFinish:
		return "finish"
	case TypeResult:
		return "result"
	case TypeCancel:
		return "cancel"
	}
	if t.OfLink() {
		return fmt.Sprintf("link message %d", uint8(t))
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// limit is the longest message of the type, prefix included; 0 for a type that
// this version does not know.
func (t Type) limit() int {
	switch t {
	case TypeHello:
		return MaxHello
	case TypeOpen, TypeAdmit, TypeResult:
		return MaxControl
	case TypeRefuse, TypeCancel, TypeBye:
		return maxText
	case TypeLaneHello, TypeLaneOK, TypePing, TypePong, TypeGrant, TypeFlush, TypeFinish:
		return maxFixed
	case TypeAck:
		return maxAck
	case TypeNack:
		return maxNack
	case TypeFlushed:
		return MaxSmallControl
	}
	if t.OfLink() {
		return MaxLink
	}
	return 0
}

// ControlLength looks at a message's prefix (ControlPrefix bytes) and returns
// the length of the body after it. It checks the prefix's checksum before
// anything else, so that a damaged length never makes a reader wait for bytes
// that nobody sent. The length is within the bound of the type, so that a reader
// may take it as a limit; it says nothing about how much will really come.
// Errors Is ErrProtocol: the checksum is wrong, the length exceeds the bound,
// bits that have to be zero are not, or the type is unknown and not optional.
func ControlLength(prefix []byte) (bodyLen int, t Type, err error) {
	if len(prefix) < ControlPrefix {
		return 0, 0, Violation("message of %d bytes, want at least %d", len(prefix), ControlPrefix)
	}
	le := binary.LittleEndian
	if got, want := controlSum(prefix[:offPrefixSum]), le.Uint32(prefix[offPrefixSum:]); got != want {
		return 0, 0, Violation("checksum of a message's prefix: %08x, prefix says %08x (damaged, or not pdlink)", got, want)
	}
	n := le.Uint32(prefix)
	t, flags := Type(prefix[4]), prefix[offFlags]
	limit := t.limit()
	if limit == 0 {
		if flags&FlagOptional == 0 {
			return 0, t, Violation("message of unknown %v", t)
		}
		limit = MaxSmallControl
	}
	if flags&^FlagOptional != 0 || le.Uint16(prefix[6:]) != 0 {
		return 0, t, Violation("%v message: reserved bits of the prefix are not zero", t)
	}
	if int64(n) > int64(limit-ControlPrefix) {
		return 0, t, Violation("%v message with a body of %d bytes, limit %d", t, n, limit-ControlPrefix)
	}
	return int(n), t, nil
}

// Append appends an encoded message to dst, like the function of the message's
// own type. Errors: transport.ErrTooLarge, transport.ErrInvalid; dst is then
// returned as it was.
func Append(dst []byte, m Message) ([]byte, error) {
	switch m := m.(type) {
	case *Hello:
		return AppendHello(dst, m)
	case *LaneHello:
		return AppendLaneHello(dst, m)
	case *LaneOK:
		return AppendLaneOK(dst, m)
	case *Bye:
		return AppendBye(dst, m)
	case *Ping:
		return AppendPing(dst, m)
	case *Pong:
		return AppendPong(dst, m)
	case *Open:
		return AppendOpen(dst, m)
	case *Admit:
		return AppendAdmit(dst, m)
	case *Refuse:
		return AppendRefuse(dst, m)
	case *Grant:
		return AppendGrant(dst, m)
	case *Ack:
		return AppendAck(dst, m)
	case *Nack:
		return AppendNack(dst, m)
	case *Flush:
		return AppendFlush(dst, m)
	case *Flushed:
		return AppendFlushed(dst, m)
	case *Finish:
		return AppendFinish(dst, m)
	case *Result:
		return AppendResult(dst, m)
	case *Cancel:
		return AppendCancel(dst, m)
	case *Link:
		return AppendLink(dst, m)
	}
	return dst, fmt.Errorf("%w: no encoding for %T", transport.ErrInvalid, m)
}

// Decode decodes one message, prefix included, whose checksums are right. What
// it returns is the caller's, except that a Meta is part of msg and valid as long
// as msg is. Errors Is ErrProtocol.
func Decode(msg []byte) (Message, error) { return new(Decoder).Decode(msg) }

// check functions hold the rules that encoders and decoders share.

func (m *Hello) check() *fault {
	switch {
	case m.Boot == transport.ID{}:
		return wrong("boot id is zero")
	case m.MaxPayload < MinPayload:
		return wrong(fmt.Sprintf("largest payload of %d bytes, want at least %d", m.MaxPayload, MinPayload))
	case m.Lanes < 1:
		return wrong("no lane")
	case len(m.Sums) == 0:
		return wrong("no checksum")
	}
	if f := checkText("name", m.Name, MaxName); f != nil {
		return f
	}
	if f := checkNames("checksums", m.Sums); f != nil {
		return f
	}
	return checkNames("features", m.Features)
}

func (m *LaneHello) check() *fault {
	if m.Token == [16]byte{} {
		return wrong("token is zero")
	}
	return checkLane(m.Lane)
}

func (m *LaneOK) check() *fault { return checkLane(m.Lane) }

func (m *Ping) check() *fault { return checkToken(m.Token) }

func (m *Pong) check() *fault { return checkToken(m.Token) }

func checkToken(token uint64) *fault {
	if token == 0 {
		return wrong("token is zero")
	}
	return nil
}

func checkLane(lane uint16) *fault {
	if lane >= MaxLanes {
		return wrong(fmt.Sprintf("lane %d of at most %d", lane, MaxLanes))
	}
	return nil
}

func (m *Open) check() *fault {
	switch {
	case m.ID == transport.ID{}:
		return wrong("transfer id is zero")
	case m.Parts > transport.MaxParts:
		return tooMuch("parts", int(m.Parts), transport.MaxParts)
	case m.Part >= m.Parts:
		return wrong(fmt.Sprintf("part %d of %d", m.Part, m.Parts))
	}
	if f := checkText("kind", m.Kind, transport.MaxKind); f != nil {
		return f
	}
	return checkMeta(m.Meta)
}

func (m *Admit) check() *fault {
	if m.Window < 1 || m.Window > MaxWindow {
		return wrong(fmt.Sprintf("window of %d frames, want 1 to %d", m.Window, MaxWindow))
	}
	return checkMeta(m.Meta)
}

func (m *Result) check() *fault { return checkMeta(m.Meta) }

func checkMeta(meta []byte) *fault {
	if len(meta) > transport.MaxMeta {
		return tooMuch("bytes of meta", len(meta), transport.MaxMeta)
	}
	return nil
}

func (m *Ack) check() *fault {
	if len(m.Ranges) > MaxRanges {
		return tooMuch("ranges", len(m.Ranges), MaxRanges)
	}
	if len(m.Ranges) == 0 {
		return wrong("no range")
	}
	for _, r := range m.Ranges {
		if r.Count < 1 || uint64(r.First)+uint64(r.Count) > 1<<32 {
			return wrong(fmt.Sprintf("range of %d blocks from %d", r.Count, r.First))
		}
	}
	return nil
}

func (m *Link) check() *fault {
	if !m.Of.OfLink() {
		return wrong(fmt.Sprintf("type %d is no link message", m.Of))
	}
	if len(m.Body) > MaxLinkBody {
		return tooMuch("bytes of body", len(m.Body), MaxLinkBody)
	}
	return nil
}

func (m *Nack) check() *fault { return checkPieces(m.Pieces, 1, transport.MaxPieces) }

func (m *Flushed) check() *fault { return checkPieces(m.Missing, 0, transport.MaxMissing) }
