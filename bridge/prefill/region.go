package prefill

import (
	"bytes"
	"fmt"

	"github.com/zeebo/xxh3"

	"pdlink/transport"
)

// Sizes of PROTOCOL.md section 5.
const (
	recordSize = 4 << 10
	recordHead = 64
	entrySize  = 32
	maxEntries = (recordSize - recordHead) / entrySize
	maxList    = maxEntries * entrySize

	ringMagic = "PDLR"
	pageSize  = 4 << 10

	minSlot = 2 * transport.HeaderRoom
)

// States of a record.
const (
	stateFree   = 0
	stateLeased = 1
	stateTaken  = 2
)

// geometry is how a ring is cut. Its sizes are bytes.
type geometry struct {
	slots, slotSize int
}

// check reports a ring that cannot be.
func (g geometry) check() error {
	switch {
	case g.slotSize < minSlot || g.slotSize > transport.MaxSlot || g.slotSize%pageSize != 0:
		return fmt.Errorf("%w: slots of %d bytes: want a multiple of %d from %d to %d", ErrRing, g.slotSize, pageSize, minSlot, transport.MaxSlot)
	case g.slots < 2 || g.slots > 1<<16 || g.size() > maxRingBytes:
		return fmt.Errorf("%w: %d slots of %d bytes: want 2 to %d of that size (a ring has at most %d bytes)",
			ErrRing, g.slots, g.slotSize, (maxRingBytes-pageSize)/(g.slotSize+recordSize), maxRingBytes)
	}
	return nil
}

// first is where the slots begin, size the bytes of all.
func (g geometry) first() int { return pageSize + g.slots*recordSize }
func (g geometry) size() int  { return g.first() + g.slots*g.slotSize }

// region is the memory of a ring.
type region struct {
	mem []byte
	geometry
	id transport.ID
}

// format writes the header of a new ring; all else is zero already.
func (r *region) format() {
	h := r.mem[:pageSize]
	copy(h, ringMagic)
	h[4] = version
	put32(h[8:], uint32(r.slots))
	put32(h[12:], uint32(r.slotSize))
	copy(h[16:32], r.id[:])
	put64(h[32:], uint64(r.first()))
	put64(h[40:], uint64(r.size()))
}

// openRegion reads the header of a ring that somebody hands over, which has to
// be cut like g. Error: ErrRing.
func openRegion(mem []byte, g geometry) (*region, error) {
	if len(mem) != g.size() {
		return nil, fmt.Errorf("%w: %d bytes, want %d", ErrRing, len(mem), g.size())
	}
	r := &region{mem: mem, geometry: g, id: transport.ID(mem[16:32])}
	if r.id == (transport.ID{}) {
		return nil, fmt.Errorf("%w: id is zero", ErrRing)
	}
	var want [48]byte
	w := region{mem: make([]byte, pageSize), geometry: g, id: r.id}
	w.format()
	copy(want[:], w.mem)
	if !bytes.Equal(mem[:len(want)], want[:]) {
		return nil, fmt.Errorf("%w: its header is of another version or size", ErrRing)
	}
	return r, nil
}

// payload is the slots' memory, for a transport.Ring.
func (r *region) payload() []byte { return r.mem[r.first():] }

// data is what workers may write of a slot.
func (r *region) data(slot int) []byte {
	at := r.first() + slot*r.slotSize
	return r.mem[at+transport.HeaderRoom : at+r.slotSize : at+r.slotSize]
}

// record is a slot's record. Its fields belong to whoever holds the slot.
func (r *region) record(slot int) record {
	at := pageSize + slot*recordSize
	return record(r.mem[at : at+recordSize : at+recordSize])
}

// record is the memory of one record.
type record []byte

func (r record) state() uint32          { return u32(r[0:]) }
func (r record) generation() uint32     { return u32(r[4:]) }
func (r record) transfer() transport.ID { return transport.ID(r[16:32]) }
func (r record) mode() uint8            { return r[32] }
func (r record) instance() transport.ID { return transport.ID(r[40:56]) }
func (r record) list() []byte           { return r[recordHead:] }

// free marks a slot that has nothing.
func (r record) free() { put32(r[0:], stateFree) }

// lease begins a new generation of the slot and returns it.
func (r record) lease(transfer, instance transport.ID, mode uint8) uint32 {
	gen := r.generation() + 1
	head := r[8:recordHead]
	clear(head)
	put32(r[4:], gen)
	copy(r[16:32], transfer[:])
	r[32] = mode
	copy(r[40:56], instance[:])
	put32(r[0:], stateLeased)
	return gen
}

// take marks what a slot has as committed: list is the entries, with their sums.
func (r record) take(transfer transport.ID, list []byte, payload int, sum uint8) {
	put32(r[0:], stateTaken)
	put32(r[8:], uint32(len(list)/entrySize))
	put32(r[12:], uint32(payload))
	copy(r[16:32], transfer[:])
	r[32], r[33] = modePieces, sum
	copy(r.list(), list)
	put64(r[56:], r.sum(len(list)))
}

// sum is the checksum of a record with a list of so many bytes.
func (r record) sum(list int) uint64 {
	var h xxh3.Hasher
	h.Write(r[:56])                          //nolint:errcheck // a hash takes everything
	h.Write(r[recordHead : recordHead+list]) //nolint:errcheck // a hash takes everything
	return h.Sum64()
}

// taken returns a copy of the list of a record that was taken whole; false for
// any other.
func (r record) taken() (list []byte, sum uint8, ok bool) {
	n := u32(r[8:])
	if r.state() != stateTaken || r.mode() != modePieces || n < 1 || n > maxEntries {
		return nil, 0, false
	}
	size := int(n) * entrySize
	if u64(r[56:]) != r.sum(size) {
		return nil, 0, false
	}
	return bytes.Clone(r.list()[:size]), r[33], true
}

// piece reads an entry of mode pieces.
func piece(e []byte) transport.Piece {
	return transport.Piece{Block: u32(e[0:]), Length: u32(e[4:]), Offset: u64(e[8:]), Sum: u64(e[16:])}
}

// putPiece writes an entry of mode pieces.
func putPiece(e []byte, p transport.Piece) {
	put32(e[0:], p.Block)
	put32(e[4:], p.Length)
	put64(e[8:], p.Offset)
	put64(e[16:], p.Sum)
	put64(e[24:], 0)
}

// rows is an entry of mode rows: consecutive tokens of one layer.
type rows struct {
	Layer, Length, First, Tokens uint32
	What                         uint8
	Heads                        span // empty for x
}

// getRows reads an entry; the number of heads is added to the first.
func getRows(e []byte) (rows, error) {
	r := rows{Layer: u32(e[0:]), Length: u32(e[4:]), First: u32(e[8:]), Tokens: u32(e[12:]), What: e[16]}
	first, n := u32(e[20:]), u32(e[24:])
	if uint64(first)+uint64(n) > 1<<31 || uint64(r.First)+uint64(r.Tokens) > 1<<31 {
		return r, breach("rows of tokens %d+%d, heads %d+%d", r.First, r.Tokens, first, n)
	}
	r.Heads = span{first, first + n}
	return r, nil
}

// put writes an entry.
func (r *rows) put(e []byte) {
	clear(e[:entrySize])
	put32(e[0:], r.Layer)
	put32(e[4:], r.Length)
	put32(e[8:], r.First)
	put32(e[12:], r.Tokens)
	e[16] = r.What
	put32(e[20:], r.Heads.First)
	put32(e[24:], r.Heads.End-r.Heads.First)
}

// sumNumber is how a record numbers a checksum algorithm; 0 for others.
func sumNumber(name string) uint8 {
	switch name {
	case "xxh3-64":
		return 1
	case "crc32c":
		return 2
	}
	return 0
}

// sumFunc is the algorithm of a record's number; nil for others.
func sumFunc(number uint8) transport.SumFunc {
	for _, name := range transport.Sums() {
		if number == 0 || sumNumber(name) != number {
			continue
		}
		if f, err := transport.SumByName(name); err == nil {
			return f
		}
	}
	return nil
}
