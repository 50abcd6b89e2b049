package session

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestVigil plays looks, one a letter, and compares what they found:
//
//	h  something was heard          -  nothing was
//	P  nothing, and this process stood still for a minute before the look
//
// Found are: '.' nothing to do, 'p' a ping, 'x' lost.
func TestVigil(t *testing.T) {
	for _, c := range []struct {
		name        string
		looks, want string
		idle        bool // no transfer is open
		never       bool // pings are never written
	}{
		{name: "gone", looks: "h------", want: ".pppppx"},
		{name: "gone from the start", looks: "------", want: "pppppx"},
		{name: "answers every ping", looks: "h-h-h-h-h", want: ".p.p.p.p."},
		{name: "answers late", looks: "h-----h-----h", want: ".ppppp.ppppp."},
		{name: "stood still", looks: "h-P-h", want: ".p.p."},
		{name: "stood still at the last moment", looks: "h-----Ph------", want: ".ppppp..pppppx"},
		{name: "stood still, and the peer is gone", looks: "h-----P-", want: ".ppppp.x"},
		{name: "stood still before the first ping", looks: "hP------", want: "..pppppx"},
		{name: "stands still again and again", looks: "hPPPPPPPPPPPPPPPP", want: "................."},
		{name: "heard after a stop", looks: "hPh", want: "..."},
		{name: "ping does not go out", looks: "h" + strings.Repeat("-", 32), want: "." + strings.Repeat("p", 30) + "xx", never: true},
		{name: "idle and gone", looks: "h" + strings.Repeat("-", 45), idle: true,
			want: "." + strings.Repeat(strings.Repeat(".", 14)+"p", 2) + strings.Repeat(".", 14) + "x"},
		{name: "idle and alive", looks: strings.Repeat("h"+strings.Repeat("-", 15), 5), idle: true,
			want: strings.Repeat(strings.Repeat(".", 15)+"p", 5)},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			o := Options{}.WithDefaults()
			v := newVigil(&o, now)
			var count, drawn, said uint64
			var got strings.Builder
			for _, look := range c.looks {
				now = now.Add(v.every)
				switch look {
				case 'h':
					count++
				case 'P':
					now = now.Add(time.Minute)
				}
				switch v.look(now, count, said, !c.idle) {
				case waits:
					got.WriteByte('.')
				case asks:
					got.WriteByte('p')
					drawn++
					v.asked(drawn)
					if !c.never {
						said = drawn
					}
				case lost:
					got.WriteByte('x')
				}
			}
			if got.String() != c.want {
				t.Errorf("looks %s\nfound %s\nwant  %s", c.looks, got.String(), c.want)
			}
		})
	}
}

// TestVigilTurns has a silence that began on an idle connection judged by pings
// that a transfer made due.
func TestVigilTurns(t *testing.T) {
	now := time.Unix(1000, 0)
	o := Options{}.WithDefaults()
	v := newVigil(&o, now)
	var drawn uint64
	look := func(busy bool) verdict {
		now = now.Add(v.every)
		found := v.look(now, 0, drawn, busy)
		if found == asks {
			drawn++
			v.asked(drawn)
		}
		return found
	}
	for i := range 14 {
		if found := look(false); found != waits {
			t.Fatalf("idle look %d found %d", i, found)
		}
	}
	for i := range 5 {
		if found := look(true); found != asks {
			t.Fatalf("live look %d found %d", i, found)
		}
	}
	if found := look(true); found != lost {
		t.Errorf("the sixth live look found %d", found)
	}
	if silence := now.Sub(v.alive); silence != 20*time.Second {
		t.Errorf("silence of %v", silence)
	}
}

// TestVigilIntervals rounds intervals up to whole looks and knows what is off.
func TestVigilIntervals(t *testing.T) {
	for i, c := range []struct {
		o          Options
		every      time.Duration
		live, idle rhythm
	}{
		{Options{}, time.Second, rhythm{1, 6}, rhythm{15, 45}},
		{Options{PingEvery: 400 * time.Millisecond, LostAfter: time.Second, IdlePingEvery: time.Second, IdleLostAfter: 2 * time.Second},
			400 * time.Millisecond, rhythm{1, 3}, rhythm{3, 5}},
		{Options{LostAfter: -1, IdlePingEvery: -1}, time.Second, rhythm{1, 0}, rhythm{0, 45}},
		{Options{PingEvery: -1}, 15 * time.Second, rhythm{0, 1}, rhythm{1, 3}},
	} {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			o := c.o.WithDefaults()
			v := newVigil(&o, time.Now())
			if v.every != c.every || v.live != c.live || v.idle != c.idle {
				t.Errorf("a look every %v, %+v, %+v, want %v, %+v, %+v", v.every, v.live, v.idle, c.every, c.live, c.idle)
			}
		})
	}
	o := Options{PingEvery: -1, IdlePingEvery: -1}.WithDefaults()
	if v := newVigil(&o, time.Now()); v.every > 0 {
		t.Errorf("a look every %v with everything off", v.every)
	}
}
