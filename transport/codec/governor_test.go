package codec_test

import (
	"errors"
	"testing"
	"time"

	"pdlink/transport/codec"
)

// frame is the payloads that the tests' links carry.
const frame = 1 << 20

// world is a link, a host and a receiver, by what each does in a second of a clock of
// its own. Coding and writing overlap by what a socket's buffer holds, as they do.
type world struct {
	link     float64 // bytes on the wire a second
	source   float64 // bytes a second; 0: as fast as it is asked
	receiver float64 // bytes decoded a second; 0: as fast as they come
	ratio    map[codec.ID]float64
	rate     map[codec.ID]float64 // bytes coded a second

	now  time.Time
	free time.Time // when the socket's buffer is empty

	coded, plain int64 // bytes
	tries        int
	last         codec.ID // that coded
	stored       float64  // bytes written to the socket
	drain        float64  // bytes a second at which its buffer empties
}

// place is one lane on four cores, and a kernel that counts.
func (w *world) place() codec.Place {
	return codec.Place{Lanes: 1, Cores: 4, Delivered: func() (uint64, bool) {
		return uint64(w.stored - max(0, w.free.Sub(w.now).Seconds())*w.drain), true
	}}
}

const buffer = 4 << 20

func secs(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func newWorld(link float64) *world {
	return &world{
		link: link, now: time.Unix(1e9, 0), ratio: map[codec.ID]float64{codec.BF16: 1.5},
		rate: map[codec.ID]float64{codec.BF16: 900e6, codec.LZ4: 2e9},
	}
}

// code is what coding a payload comes to.
func (w *world) code(id codec.ID) (stored int, took time.Duration) {
	stored = frame
	if r := w.ratio[id]; r > 1 {
		stored = int(frame / r)
	}
	return stored, secs(frame / w.rate[id])
}

// run sends payloads for a time.
func (w *world) run(g *codec.Governor, long time.Duration) {
	for end := w.now.Add(long); w.now.Before(end); {
		if w.source > 0 {
			w.now = w.now.Add(secs(frame / w.source))
		}
		begin := w.now
		if g.Resting() {
			g.Rest(w.now)
		}
		id, try := g.Next(frame)
		for _, t := range try {
			stored, took := w.code(t)
			if stored == frame {
				stored = 0
			}
			w.now = w.now.Add(took)
			g.Try(t, frame, stored, took)
		}
		if len(try) > 0 {
			w.tries++
			id = g.Tried(w.now)
		}
		stored := frame
		if id != codec.None {
			var took time.Duration
			stored, took = w.code(id)
			w.now = w.now.Add(took)
			w.coded, w.last = w.coded+frame, id
		} else {
			w.plain += frame
		}
		coding := w.now.Sub(begin)
		w.write(stored, id)
		g.Wrote(frame, stored, coding, w.now.Sub(begin)-coding, w.now)
	}
}

// write puts bytes into the socket's buffer, which waits where it is full.
func (w *world) write(stored int, id codec.ID) {
	rate := w.link
	if id != codec.None && w.receiver > 0 {
		rate = min(rate, w.receiver*float64(stored)/frame)
	}
	if w.free.Before(w.now) {
		w.free = w.now
	}
	w.stored, w.drain = w.stored+float64(stored), rate
	w.free = w.free.Add(secs(float64(stored) / rate))
	if over := w.free.Sub(w.now) - secs(buffer/rate); over > 0 {
		w.now = w.now.Add(over)
	}
}

// share is what part of the bytes was coded.
func (w *world) share() float64 { return float64(w.coded) / float64(w.coded+w.plain) }

// TestGovernor: when Auto codes, in worlds that it was made for.
func TestGovernor(t *testing.T) {
	const gbit = 1e9 / 8 * 0.94
	for name, tt := range map[string]struct {
		change      func(*world)
		link        float64
		least, most float64 // of the bytes coded in 30 s
	}{
		"1 Gbit/s":                        {nil, gbit, 0.95, 1},
		"2.5 Gbit/s":                      {nil, 2.5 * gbit, 0.95, 1},
		"10 Gbit/s":                       {nil, 10 * gbit, 0, 0},
		"10 Gbit/s and a miraculous core": {func(w *world) { w.rate[codec.BF16] = 1e11 }, 10 * gbit, 0, 0},
		"a slow core":                     {func(w *world) { w.rate[codec.BF16] = 200e6 }, gbit, 0, 0},
		"a slow source":                   {func(w *world) { w.source = 60e6 }, gbit, 0, 0},
		"noise":                           {func(w *world) { w.ratio = nil }, gbit, 0, 0},
		"little to gain":                  {func(w *world) { w.ratio[codec.BF16] = 1.1 }, gbit, 0, 0},
		"lz4 gains more":                  {func(w *world) { w.ratio[codec.LZ4] = 3 }, gbit, 0.95, 1},
		"a slow receiver":                 {func(w *world) { w.receiver = 100e6 }, gbit, 0.001, 0.2},
		"a slow receiver, but it pays":    {func(w *world) { w.receiver = 150e6 }, gbit, 0.95, 1},
	} {
		w := newWorld(tt.link)
		if tt.change != nil {
			tt.change(w)
		}
		w.run(codec.NewGovernor(codec.Auto, codec.All(), w.place()), 30*time.Second)
		if got := w.share(); got < tt.least || got > tt.most {
			t.Errorf("%s: %.3f of the bytes were coded, want %.3f to %.3f", name, got, tt.least, tt.most)
		}
	}
}

// TestGovernorOfEquals: of codecs that gain the same the first one is taken, and one that
// gains more wherever it is.
func TestGovernorOfEquals(t *testing.T) {
	for ratio, want := range map[float64]codec.ID{1.5: codec.BF16, 1.4: codec.BF16, 1.6: codec.LZ4} {
		w := newWorld(1e8)
		w.ratio[codec.LZ4] = ratio
		w.run(codec.NewGovernor(codec.Auto, codec.All(), w.place()), 10*time.Second)
		if w.last != want {
			t.Errorf("LZ4 makes it %v times smaller, BF16 1.5 times: coded by %v", ratio, w.last)
		}
	}
}

// TestGovernorFollows: a link that changes is noticed, and one that does not pay costs
// little.
func TestGovernorFollows(t *testing.T) {
	const gbit = 1e9 / 8 * 0.94
	w := newWorld(gbit)
	g := codec.NewGovernor(codec.Auto, codec.All(), w.place())
	w.run(g, 20*time.Second)
	if w.share() < 0.95 {
		t.Errorf("at 1 Gbit/s: %.3f of the bytes were coded", w.share())
	}
	w.link = 10 * gbit
	w.run(g, 2*time.Minute)
	w.coded, w.plain = 0, 0
	w.run(g, 20*time.Second)
	if w.coded > 0 {
		t.Errorf("at 10 Gbit/s: %.3f of the bytes were coded", w.share())
	}
	w.link = gbit
	w.run(g, 10*time.Second)
	w.coded, w.plain = 0, 0
	w.run(g, 20*time.Second)
	if w.share() < 0.95 {
		t.Errorf("at 1 Gbit/s again: %.3f of the bytes were coded", w.share())
	}

	w = newWorld(gbit)
	w.ratio = nil
	w.run(codec.NewGovernor(codec.Auto, codec.All(), w.place()), 10*time.Minute)
	if w.tries < 4 || w.tries > 12 {
		t.Errorf("%d tries in 10 minutes of noise", w.tries)
	}
}

// TestGovernorForced: what the operator says counts, as far as the peer takes it.
func TestGovernorForced(t *testing.T) {
	for _, tt := range []struct {
		m    codec.Mode
		peer []codec.ID
		id   codec.ID
		idle bool
	}{
		{codec.OnlyLZ4, codec.All(), codec.LZ4, false},
		{codec.OnlyBF16, codec.All(), codec.BF16, false},
		{codec.OnlyBF16, []codec.ID{codec.LZ4}, codec.None, true},
		{codec.Off, codec.All(), codec.None, true},
		{codec.Auto, nil, codec.None, true},
		{codec.Auto, codec.All(), codec.None, false},
	} {
		g := codec.NewGovernor(tt.m, tt.peer, codec.Place{Lanes: 1, Cores: 2})
		id, try := g.Next(100)
		if id != tt.id || try != nil || g.Idle() != tt.idle {
			t.Errorf("%v for a peer with %v: %v, to try %v, idle %v", tt.m, tt.peer, id, try, g.Idle())
		}
	}
}

func TestModes(t *testing.T) {
	for i, name := range codec.Modes() {
		m, err := codec.ParseMode(name)
		if err != nil || m != codec.Mode(i) || m.String() != name {
			t.Errorf("%q is %v: %v", name, m, err)
		}
	}
	if m, err := codec.ParseMode(""); m != codec.Auto || err != nil {
		t.Errorf("no name is %v: %v", m, err)
	}
	if _, err := codec.ParseMode("zip"); err == nil || errors.Is(err, codec.ErrMalformed) {
		t.Errorf("zip: %v", err)
	}
	if s := codec.Mode(9).String(); s != "mode 9" {
		t.Error(s)
	}
}
