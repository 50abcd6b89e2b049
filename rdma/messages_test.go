package rdma

import (
	"errors"
	"reflect"
	"testing"

	"pdlink/rdma/internal/verbs"
	"pdlink/transport"
)

func samplePlace() (place, terms) {
	p := place{gid: verbs.GID{1, 2, 3}, lid: 4, bodySize: 1 << 20, trial: pairPlace{5, 6}}
	for i := range uint32(2) {
		p.lanes = append(p.lanes, lanePlace{
			pair: pairPlace{0x100 + i, 0xabcdef}, slots: 4, heads: span{1 << 40, 77, 4},
			bodies: []span{{2 << 40, 78, 3}, {3 << 40, 79, 1}},
		})
	}
	return p, terms{mode: push, lanes: 2, slots: 4, maxPayload: 1 << 20}
}

func sampleOffer() offer {
	return offer{
		modes: push | pull, rc: true, immediate: true, linkLocal: true, mtu: verbs.MTU4096, readsIn: 16, readsOut: 1,
		lanes: 3, slots: 16, strides: 16, class: "mlx5",
	}
}

// TestMessages encodes and decodes.
func TestMessages(t *testing.T) {
	o, got := sampleOffer(), offer{}
	r := &reader{b: o.append(nil)}
	if got.parse(r); r.err != nil || got != o || len(r.b) != 0 {
		t.Errorf("offer %+v, %v, want %+v", got, r.err, o)
	}
	p, terms := samplePlace()
	var back place
	r = &reader{b: p.append(nil)}
	if back.parse(r, &terms); r.err != nil || !reflect.DeepEqual(back, p) || len(r.b) != 0 {
		t.Errorf("place %+v, %v, want %+v", back, r.err, p)
	}
	n := notice{1, 2, 3 << 40, 4, 5}
	var room [noticeSize]byte
	n.put(room[:])
	var m notice
	if m.get(room[:]); m != n {
		t.Errorf("notice %+v, want %+v", m, n)
	}
}

// TestRefusedPlaces says what no end may say of its memory.
func TestRefusedPlaces(t *testing.T) {
	for name, change := range map[string]func(p *place){
		"lanes":           func(p *place) { p.lanes = p.lanes[:1] },
		"small slots":     func(p *place) { p.bodySize-- },
		"huge slots":      func(p *place) { p.bodySize = transport.MaxSlot + 1 },
		"slots":           func(p *place) { p.lanes[0].slots = 5 },
		"too few bodies":  func(p *place) { p.lanes[0].bodies = p.lanes[0].bodies[:1] },
		"too many bodies": func(p *place) { p.lanes[1].bodies[0].slots = 4 },
		"heads":           func(p *place) { p.lanes[1].heads.slots = 3 },
		"many spans":      func(p *place) { p.lanes[0].bodies = make([]span, 5) },
		"queue pair":      func(p *place) { p.lanes[0].pair.number = 1 << 24 },
		"packet number":   func(p *place) { p.trial.psn = 1 << 24 },
	} {
		p, terms := samplePlace()
		change(&p)
		var back place
		r := &reader{b: p.append(nil)}
		if back.parse(r, &terms); !errors.Is(r.err, transport.ErrProtocol) {
			t.Errorf("%s: %v", name, r.err)
		}
	}
}

// FuzzMessages decodes anything: an error, or something that encodes to the same.
func FuzzMessages(f *testing.F) {
	o := sampleOffer()
	p, terms := samplePlace()
	f.Add(o.append(nil))
	f.Add(p.append(nil))
	f.Add((&count{1, 2, 3}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var o offer
		if r := (&reader{b: b}); true {
			o.parse(r)
			// A class that cannot be printed is not kept as it is.
			if r.err == nil && len(r.b) == 0 && o.class == string(b[9:]) && string(o.append(nil)) != string(b) {
				t.Errorf("offer %+v encodes to %x, was %x", o, o.append(nil), b)
			}
		}
		var p place
		r := &reader{b: b}
		if p.parse(r, &terms); r.err == nil && len(r.b) == 0 && string(p.append(nil)) != string(b) {
			t.Errorf("place %+v encodes to %x, was %x", p, p.append(nil), b)
		}
		if r.err != nil && !errors.Is(r.err, transport.ErrProtocol) {
			t.Errorf("error %v", r.err)
		}
	})
}

// TestAgree draws terms from what ends can do.
func TestAgree(t *testing.T) {
	rc, uc := sampleOffer(), offer{modes: stride, uc: true, mtu: verbs.MTU1024, lanes: 1, slots: 16, strides: 96, class: "apple"}
	reader := rc
	reader.modes, reader.immediate = pull|stride, false
	for name, c := range map[string]struct {
		a, b   offer
		mode   mode
		kind   verbs.QPKind
		reads  [2]uint8
		trials bool
	}{
		"both write":     {rc, rc, push, verbs.RC, [2]uint8{1, 1}, true},
		"one reads only": {rc, reader, pull, verbs.RC, [2]uint8{1, 1}, false},
		"unreliable":     {uc, uc, stride, verbs.UC, [2]uint8{1, 1}, false},
		"nothing":        {rc, uc, 0, 0, [2]uint8{}, false},
	} {
		for _, swap := range []bool{false, true} {
			a, b := c.a, c.b
			if swap {
				a, b = b, a
			}
			got, err := agree(&a, &b)
			if c.mode == 0 {
				if !errors.Is(err, transport.ErrIncompatible) {
					t.Errorf("%s: %+v, %v", name, got, err)
				}
				continue
			}
			if err != nil || got.mode != c.mode || got.kind != c.kind || got.reads != c.reads || got.immediate != c.trials {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}
	}
}
