package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"pdlink/transport"
)

// source is what a sender sends: the slots of its ring, filled once and sent in
// place, as an engine's finished bytes are. A slot's first 8 bytes name it, so
// that whoever leased it knows its checksum. The link may write to the header
// room only. Safe for concurrent use after the calls of prepare.
type source struct {
	ring  *transport.Ring
	tag   uint32           // of this run's slots
	sums  map[int][]uint64 // by length of a frame, then by slot; set by prepare
	taken []atomic.Bool    // slots that were sent since the last count
}

// newSource fills the ring with values that do not repeat.
func newSource(ring *transport.Ring) *source {
	s := &source{ring: ring, tag: rand.Uint32(), taken: make([]atomic.Bool, ring.Slots())}
	rng := rand.New(rand.NewPCG(uint64(s.tag), 0x7064))
	for i := range ring.Slots() {
		p := s.payload(i)
		for at := 0; at+unit <= len(p); at += unit {
			binary.LittleEndian.PutUint64(p[at:], rng.Uint64())
		}
		binary.LittleEndian.PutUint32(p, s.tag)
		binary.LittleEndian.PutUint32(p[4:], uint32(i))
	}
	return s
}

func (s *source) payload(i int) []byte {
	size := s.ring.SlotSize()
	return s.ring.Memory()[i*size+transport.HeaderRoom : (i+1)*size]
}

// prepare computes the checksums of frames of the given lengths.
func (s *source) prepare(algorithm string, lengths ...int) error {
	sum, err := transport.SumByName(algorithm)
	if err != nil {
		return err
	}
	s.sums = make(map[int][]uint64, len(lengths))
	for _, n := range lengths {
		all := make([]uint64, s.ring.Slots())
		for i := range all {
			all[i] = sum(s.payload(i)[:n])
		}
		s.sums[n] = all
	}
	return nil
}

// put adds a piece to a lease: the slot's own bytes. The checksum goes with it
// where prepare has it.
func (s *source) put(l *transport.Lease, block uint32, offset uint64, n int) error {
	mem, err := l.Reserve(block, offset, n)
	if err != nil {
		return err
	}
	i := int(binary.LittleEndian.Uint32(mem[4:]))
	if binary.LittleEndian.Uint32(mem) != s.tag || i >= len(s.taken) {
		return fmt.Errorf("the link changed the bytes of a slot that it only had to send")
	}
	s.taken[i].Store(true)
	if all := s.sums[n]; all != nil {
		l.SetSum(all[i])
	}
	return nil
}

// used is how many different slots were sent from since the last call.
func (s *source) used() int {
	n := 0
	for i := range s.taken {
		if s.taken[i].Swap(false) {
			n++
		}
	}
	return n
}
