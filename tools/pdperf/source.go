package main

import (
	"encoding/binary"
	"errors"
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
	tag   uint32              // of this run's slots
	sums  map[extent][]uint64 // of parts of a slot's payload, by slot; set by prepare
	taken []atomic.Bool       // slots that were sent since the last count
}

// extent is a part of a slot's payload.
type extent struct{ at, n int }

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

// prepare computes the checksums of the frames of a shape, whatever slots they get.
func (s *source) prepare(algorithm string, frames [][]segment) error {
	sum, err := transport.SumByName(algorithm)
	if err != nil {
		return err
	}
	s.sums = map[extent][]uint64{}
	for _, f := range frames {
		at := 0
		for _, p := range f {
			e := extent{at, p.n}
			at += p.n
			if s.sums[e] != nil {
				continue
			}
			all := make([]uint64, s.ring.Slots())
			for i := range all {
				all[i] = sum(s.payload(i)[e.at:][:e.n])
			}
			s.sums[e] = all
		}
	}
	return nil
}

// put makes a lease the frame of some segments, whose blocks are counted from base: the
// slot's own bytes. The checksums go with them where prepare has them.
func (s *source) put(l *transport.Lease, base uint32, frame []segment) error {
	at, slot := 0, 0
	for i, p := range frame {
		mem, err := l.Reserve(base+p.block, p.offset, p.n)
		if err != nil {
			return err
		}
		if i == 0 {
			if len(mem) < unit {
				return errors.New("a frame is shorter than the name of its slot")
			}
			slot = int(binary.LittleEndian.Uint32(mem[4:]))
			if binary.LittleEndian.Uint32(mem) != s.tag || slot >= len(s.taken) {
				return errors.New("the link changed the bytes of a slot that it only had to send")
			}
			s.taken[slot].Store(true)
		}
		if all := s.sums[extent{at, p.n}]; all != nil {
			l.SetSum(all[slot])
		}
		at += p.n
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
