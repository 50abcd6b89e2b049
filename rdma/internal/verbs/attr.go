package verbs

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"unsafe"
)

// Class says whose provider a device has, as far as its names tell. It is where
// guesses about limits start, and is shown to people; what counts is what works.
type Class string

// Classes of devices.
const (
	ClassMellanox Class = "mlx5"     // ConnectX on Linux
	ClassSoft     Class = "rxe"      // Soft-RoCE
	ClassMCDMA    Class = "mcdma"    // ConnectX on a Mac through MCDMA
	ClassMelonDMA Class = "melondma" // ConnectX on a Mac through MelonDMA
	ClassApple    Class = "apple"    // Thunderbolt on a Mac
	ClassOther    Class = "other"    // unknown: assume the least
)

// DeviceInfo names a device.
type DeviceInfo struct {
	Name  string // as in Open; unique on the host
	Class Class
}

// DeviceAttr is what a device advertises (struct ibv_device_attr).
type DeviceAttr struct {
	Firmware   string
	Ports      int
	MaxMRSize  uint64 // bytes of one MR
	MaxQPWR    int    // work requests of one queue
	MaxRead    int    // READs of peers that one queue pair takes at a time
	MaxReadOut int    // READs that one queue pair sends at a time
}

// PortState is IBV_PORT_*.
type PortState uint32

// States of a port. Only an active one carries data.
const (
	PortNop         PortState = 0
	PortDown        PortState = 1
	PortInit        PortState = 2
	PortArmed       PortState = 3
	PortActive      PortState = 4
	PortActiveDefer PortState = 5
)

// String returns a lower-case name.
func (s PortState) String() string {
	return nameOf(uint32(s), "no state", "down", "init", "armed", "active", "active, deferred")
}

// LinkLayer is IBV_LINK_LAYER_*; Apple's Thunderbolt has a value of its own.
type LinkLayer uint8

// Link layers.
const (
	LinkUnspecified LinkLayer = 0
	LinkInfiniBand  LinkLayer = 1
	LinkEthernet    LinkLayer = 2
	LinkThunderbolt LinkLayer = 100
)

// MTU is IBV_MTU_*: the largest payload of a packet.
type MTU uint32

// Path MTUs.
const (
	MTU256  MTU = 1
	MTU512  MTU = 2
	MTU1024 MTU = 3
	MTU2048 MTU = 4
	MTU4096 MTU = 5
)

// Bytes is the size, 0 for what is no MTU.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

// PortAttr is the state of a port (struct ibv_port_attr).
type PortAttr struct {
	State     PortState
	LinkLayer LinkLayer
	MaxMTU    MTU
	ActiveMTU MTU // of the moment; larger packets vanish
	GIDs      int // entries of the table of GIDs, most of them empty
	MaxMsg    uint32
	LID       uint16
	Width     uint8 // IBV_WIDTH_*: see Rate
	Speed     uint8
}

// Rate is the signalling rate in bits a second, 0 where the provider does not say.
// Soft and Ethernet devices often report a made-up one.
func (p PortAttr) Rate() uint64 {
	lanes := map[uint8]uint64{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[p.Width]
	const mega = 1e6
	lane := map[uint8]uint64{
		1: 2500 * mega, 2: 5000 * mega, 4: 10000 * mega, 8: 10000 * mega, 16: 14000 * mega, 32: 25000 * mega,
		64: 50000 * mega, 128: 100000 * mega,
	}[p.Speed]
	return lanes * lane
}

// GID is a port's address, bytes in network order: an IPv6 address, for RoCE often
// one that maps an IPv4 address.
type GID [16]byte

// Addr is the GID as an IP address; an IPv4 one where it maps one.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// String returns it as an IP address.
func (g GID) String() string { return g.Addr().String() }

// GIDKind is how packets to a GID look (enum ibv_gid_type of entries).
type GIDKind uint32

// Kinds of GIDs.
const (
	GIDInfiniBand GIDKind = 0
	GIDRoCEv1     GIDKind = 1
	GIDRoCEv2     GIDKind = 2
	GIDUnknown    GIDKind = 1 << 31 // the provider does not say
)

// String returns the name that people know.
func (k GIDKind) String() string {
	if k == GIDUnknown {
		return "unknown"
	}
	return nameOf(uint32(k), "InfiniBand", "RoCE v1", "RoCE v2")
}

// GIDEntry is one of a port's GIDs.
type GIDEntry struct {
	GID     GID
	Index   int // in the port's table, for QPAttr.GIDIndex
	Kind    GIDKind
	IfIndex int // the network interface, 0 where the provider does not say
}

// EventKind is IBV_EVENT_*.
type EventKind uint32

// Events of a device. Those of a queue pair and of a completion queue say that it is
// dead, but for EventEstablished, EventSQDrained and EventLastWQE.
const (
	EventCQError     EventKind = 0
	EventQPFatal     EventKind = 1
	EventQPRequest   EventKind = 2
	EventQPAccess    EventKind = 3
	EventEstablished EventKind = 4
	EventSQDrained   EventKind = 5
	EventDeviceFatal EventKind = 8
	EventPortActive  EventKind = 9
	EventPortError   EventKind = 10
	EventLIDChange   EventKind = 11
	EventLastWQE     EventKind = 16
	EventReregister  EventKind = 17
	EventGIDChange   EventKind = 18
)

// String returns the name in words.
func (k EventKind) String() string {
	return nameOf(uint32(k), "completion queue error", "queue pair fatal error", "queue pair request error",
		"queue pair access error", "connection established", "send queue drained", "path migrated",
		"path migration failed", "device fatal error", "port active", "port error", "LID change", "P_Key change",
		"subnet manager change", "shared receive queue error", "shared receive queue limit reached",
		"last work request reached", "client reregistration", "GID change", "work queue fatal error")
}

// Event is something that happened outside of any call.
type Event struct {
	Kind EventKind
	Port int    // of events of a port, else 0
	QP   uint32 // number of the queue pair of events of one, else 0
}

// Access is IBV_ACCESS_*: what may be done to memory, and by whom. Reading it here
// is always allowed.
type Access uint32

// Access to registered memory. Remote writing needs local writing.
const (
	AccessLocalWrite  Access = 1 << 0
	AccessRemoteWrite Access = 1 << 1
	AccessRemoteRead  Access = 1 << 2
)

// MRInfo names registered memory.
type MRInfo struct {
	Addr   uint64 // of the first byte, here and in the peer's work requests
	Length int
	Local  uint32 // key for work requests of this end
	Remote uint32 // key for work requests of the peer: a secret, and only with remote access
}

// QPKind is IBV_QPT_*. The zero value means RC.
type QPKind uint32

// Kinds of queue pairs.
const (
	RC QPKind = 2 // reliable connection
	UC QPKind = 3 // unreliable connection
)

// QPOptions says what queue pair to make. Counts of 0 mean none of it.
type QPOptions struct {
	Kind         QPKind // 0 means RC
	SendCQ       CQ     // of the same device; both may be the same queue
	RecvCQ       CQ
	MaxSend      int // work requests outstanding in the send queue
	MaxRecv      int // the same of the receive queue
	SendSegments int // segments of a send request; 0 means 1, MaxSegments at most
	MaxInline    int // bytes that a send request may carry inline
}

// QPInfo is what was made.
type QPInfo struct {
	Number       uint32 // 24 bits, for the peer
	Kind         QPKind
	MaxSend      int // granted, at least what was asked for
	MaxRecv      int
	SendSegments int
	MaxInline    int
}

// QPState is IBV_QPS_*.
type QPState uint32

// States of a queue pair, in the order of the walk.
const (
	StateReset QPState = 0
	StateInit  QPState = 1
	StateRTR   QPState = 2 // ready to receive
	StateRTS   QPState = 3 // ready to send as well
	StateError QPState = 6
)

// String returns the state's name in capitals, as the specification writes it.
func (s QPState) String() string {
	return nameOf(uint32(s), "RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR")
}

// QPAttr has what the moves of a queue pair need; each says which. Fields of other
// moves are ignored, so one value serves all three. READs are RC's only.
type QPAttr struct {
	Port   uint8  // INIT, RTR
	Access Access // INIT: remote bits only, which every provider takes

	PathMTU     MTU    // RTR: the smaller one of both ends' active MTUs
	RemoteQP    uint32 // RTR
	RemotePSN   uint32 // RTR: the peer's LocalPSN, 24 bits
	RemoteGID   GID    // RTR
	RemoteLID   uint16 // RTR: InfiniBand only
	NoRoute     bool   // RTR: InfiniBand within a subnet: address by LID, without a GID
	GIDIndex    uint8  // RTR: of this end's GID
	HopLimit    uint8  // RTR
	MaxReadIn   uint8  // RTR, RC: READs taken at a time
	MinRNRTimer uint8  // RTR, RC: code of the pause before the peer tries again when no receive is posted

	LocalPSN   uint32 // RTS: 24 bits
	MaxReadOut uint8  // RTS, RC: READs sent at a time
	Timeout    uint8  // RTS, RC: 4.096 µs · 2^Timeout to an acknowledgement
	Retries    uint8  // RTS, RC: 0 to 7
	RNRRetries uint8  // RTS, RC: 0 to 6, 7 for ever
}

// nameOf returns names[v], or a number for what came later.
func nameOf(v uint32, names ...string) string {
	if int64(v) < int64(len(names)) {
		return names[v]
	}
	return fmt.Sprintf("number %d", v)
}

// Addr is the address of the first byte of b, as work requests want it, 0 for an
// empty one. b must lie outside the Go heap.
func Addr(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// Immediate converts immediate data between a number and the order of the wire, in
// which work requests and completions of C have it.
func immediate(v uint32) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], v)
	return binary.NativeEndian.Uint32(b[:])
}
