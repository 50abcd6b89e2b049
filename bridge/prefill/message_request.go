package prefill

import "pdlink/transport"

// begin starts a request.
type begin struct {
	Transfer           transport.ID
	PromptTokens, From uint32
	Mode, DType        uint8
	RowBytes           uint32
	Layout             uint64
}

func (m *begin) put(b *[bodySize]byte) {
	copy(b[0:16], m.Transfer[:])
	put32(b[16:], m.PromptTokens)
	put32(b[20:], m.From)
	b[24], b[25] = m.Mode, m.DType
	put32(b[28:], m.RowBytes)
	put64(b[32:], m.Layout)
}

func (m *begin) get(b *[bodySize]byte) {
	*m = begin{
		Transfer: transport.ID(b[0:16]), PromptTokens: u32(b[16:]), From: u32(b[20:]), Mode: b[24], DType: b[25],
		RowBytes: u32(b[28:]), Layout: u64(b[32:]),
	}
}

// begun says what is wanted of a request.
type begun struct {
	Kind                      uint8
	Blocks, BlockTokens, From uint32
	BlockBytes                uint64
	Layers                    span
	Layout                    uint64
	Arrays, MaxLeases         uint32
}

func (m *begun) put(b *[bodySize]byte) {
	b[0] = m.Kind
	put32(b[4:], m.Blocks)
	put32(b[8:], m.BlockTokens)
	put32(b[12:], m.From)
	put64(b[16:], m.BlockBytes)
	putSpan(b[24:], m.Layers)
	put64(b[32:], m.Layout)
	put32(b[40:], m.Arrays)
	put32(b[44:], m.MaxLeases)
}

func (m *begun) get(b *[bodySize]byte) {
	*m = begun{
		Kind: b[0], Blocks: u32(b[4:]), BlockTokens: u32(b[8:]), From: u32(b[12:]), BlockBytes: u64(b[16:]),
		Layers: getSpan(b[24:]), Layout: u64(b[32:]), Arrays: u32(b[40:]), MaxLeases: u32(b[44:]),
	}
}

// array is the place of one array in a block's data.
type array struct {
	Layer, Array   uint32
	Offset, Size   uint64
	RowBytes, Rows uint32
	DType          uint8
	Index          uint32
}

func (m *array) put(b *[bodySize]byte) {
	put32(b[0:], m.Layer)
	put32(b[4:], m.Array)
	put64(b[8:], m.Offset)
	put64(b[16:], m.Size)
	put32(b[24:], m.RowBytes)
	put32(b[28:], m.Rows)
	b[32] = m.DType
	put32(b[36:], m.Index)
}

func (m *array) get(b *[bodySize]byte) {
	*m = array{
		Layer: u32(b[0:]), Array: u32(b[4:]), Offset: u64(b[8:]), Size: u64(b[16:]), RowBytes: u32(b[24:]), Rows: u32(b[28:]),
		DType: b[32], Index: u32(b[36:]),
	}
}

// lease asks for a slot.
type lease struct {
	Seq           uint64
	Block, WaitMS uint32
}

func (m *lease) put(b *[bodySize]byte) {
	put64(b[0:], m.Seq)
	put32(b[8:], m.Block)
	put32(b[12:], m.WaitMS)
}

func (m *lease) get(b *[bodySize]byte) {
	*m = lease{Seq: u64(b[0:]), Block: u32(b[8:]), WaitMS: u32(b[12:])}
}

// leased answers lease and reclaim.
type leased struct {
	Seq                            uint64
	Slot, Generation, Room, Sealed uint32
}

func (m *leased) put(b *[bodySize]byte) {
	put64(b[0:], m.Seq)
	put32(b[8:], m.Slot)
	put32(b[12:], m.Generation)
	put32(b[16:], m.Room)
	put32(b[20:], m.Sealed)
}

func (m *leased) get(b *[bodySize]byte) {
	*m = leased{Seq: u64(b[0:]), Slot: u32(b[8:]), Generation: u32(b[12:]), Room: u32(b[16:]), Sealed: u32(b[20:])}
}

// commit hands a filled slot over; without entries and payload it is the body
// of RETURN.
type commit struct{ Slot, Generation, Entries, Payload uint32 }

func (m *commit) put(b *[bodySize]byte) {
	put32(b[0:], m.Slot)
	put32(b[4:], m.Generation)
	put32(b[8:], m.Entries)
	put32(b[12:], m.Payload)
}

func (m *commit) get(b *[bodySize]byte) {
	*m = commit{u32(b[0:]), u32(b[4:]), u32(b[8:]), u32(b[12:])}
}

// end is the last word of a request; the times are nanoseconds.
type end struct {
	Tokens                 uint32
	Capture, Project, Wait uint64
}

func (m *end) put(b *[bodySize]byte) {
	put32(b[0:], m.Tokens)
	put64(b[8:], m.Capture)
	put64(b[16:], m.Project)
	put64(b[24:], m.Wait)
}

func (m *end) get(b *[bodySize]byte) {
	*m = end{Tokens: u32(b[0:]), Capture: u64(b[8:]), Project: u64(b[16:]), Wait: u64(b[24:])}
}

// sealed says from which block on nothing is wanted.
type sealed uint32

func (m *sealed) put(b *[bodySize]byte) { put32(b[0:], uint32(*m)) }
func (m *sealed) get(b *[bodySize]byte) { *m = sealed(u32(b[0:])) }

// reclaim asks for a lease of before a restart.
type reclaim struct {
	Transfer         transport.ID
	Seq              uint64
	Slot, Generation uint32
}

func (m *reclaim) put(b *[bodySize]byte) {
	copy(b[0:16], m.Transfer[:])
	put64(b[16:], m.Seq)
	put32(b[24:], m.Slot)
	put32(b[28:], m.Generation)
}

func (m *reclaim) get(b *[bodySize]byte) {
	*m = reclaim{Transfer: transport.ID(b[0:16]), Seq: u64(b[16:]), Slot: u32(b[24:]), Generation: u32(b[28:])}
}
