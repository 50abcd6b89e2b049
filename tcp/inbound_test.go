package tcp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/wire"
)

// patience is when something counts as stalled.
const patience = 10 * time.Second

// lanePair is a raw socket and the driver that reads its other end.
func lanePair(t testing.TB, lowWater int) (*net.TCPConn, *driver) {
	t.Helper()
	ca, cb := socketPair(t)
	la, lb := socketPair(t)
	d := newTestDriver(t, cb, []socket{lb}, lowWater)
	t.Cleanup(func() { ca.Close(); d.Close() })
	return la, d
}

// readOne reads one frame and reports what came.
func readOne(d *driver, room, into []byte) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := d.ReadFrame(0, room, func(h []byte) ([]byte, error) {
			f, err := wire.DecodeFrame(h, testPayload, nil)
			if err != nil {
				return nil, err
			}
			return into[:f.Payload], nil
		})
		done <- err
	}()
	return done
}

func await(t testing.TB, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("stalled: the frame is complete and nobody reads it")
	}
}

// A frame is followed by nothing, as with a window of one, and comes in parts
// with pauses: a low-water mark that is not lowered in time is never reached.
func TestLowWaterNeverStalls(t *testing.T) {
	const mark = 128 << 10
	cuts := map[string]func(n int) []int{ // lengths of the parts
		"whole":           func(n int) []int { return []int{n} },
		"halves":          func(n int) []int { return []int{n / 2, n - n/2} },
		"last byte":       func(n int) []int { return []int{n - 1, 1} },
		"header, payload": func(n int) []int { return []int{96, n - 96} },
		"first byte":      func(n int) []int { return []int{97, n - 97} },
		"near the mark":   func(n int) []int { return []int{96 + mark - 1, n - 96 - mark + 1} },
		"many": func(n int) (parts []int) {
			for ; n > 20_000; n -= 20_000 {
				parts = append(parts, 20_000)
			}
			return append(parts, n)
		},
	}
	for name, cut := range cuts {
		for _, size := range []int{mark - 1, mark, mark + 1, 2*mark - 1, 2 * mark, 4*mark + 7} {
			t.Run(fmt.Sprintf("%s/%d", name, size), func(t *testing.T) {
				t.Parallel()
				raw, d := lanePair(t, mark)
				h, p := frame(t, uint64(size), size, 1)
				room, got := make([]byte, transport.HeaderRoom), make([]byte, testPayload)
				for range 2 { // the second with the mark that the first left
					done := readOne(d, room, got)
					all := append(bytes.Clone(h), p...)
					for _, n := range cut(len(all)) {
						if n <= 0 {
							continue
						}
						if _, err := raw.Write(all[:n]); err != nil {
							t.Fatal(err)
						}
						all = all[n:]
						time.Sleep(2 * time.Millisecond)
					}
					if len(all) != 0 {
						raw.Write(all)
					}
					await(t, done)
					if !bytes.Equal(got[:size], p) {
						t.Fatal("payload differs")
					}
				}
			})
		}
	}
}

// The same through the whole link: one frame may be on its way at a time.
func TestLowWaterWithWindowOfOne(t *testing.T) {
	const mark = 256 << 10
	o := session.Options{Window: 1}
	for _, r := range []**transport.Ring{&o.SendRing, &o.RecvRing} {
		ring, err := transport.NewRing(4, 2*mark+transport.HeaderRoom)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ring.Close() })
		*r = ring
	}
	l, s, _ := listen(t, Options{Session: o, LowWater: mark})
	a, b := connect(t, l, s)
	received := make(chan error, 1)
	go func() { received <- drain(t.Context(), b) }()
	out, err := a.Open(t.Context(), transport.Request{Kind: "test", Replayable: true})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		for i, size := range []int{mark - 1, mark, mark + 1, 2*mark - 1, 1, mark, 2 * mark} {
			lease, err := out.Lease(t.Context())
			if err != nil {
				done <- err
				return
			}
			if _, err := lease.Reserve(uint32(i), 0, size); err != nil {
				done <- err
				return
			}
			if err := out.Send(t.Context(), lease); err != nil {
				done <- err
				return
			}
		}
		_, err := out.Finish(t.Context())
		done <- err
	}()
	await(t, done)
	await(t, received)
}

// Frames are a stream of bytes: however it is cut, and however far a read reaches
// into the next frame, the same frames come out.
func TestAnyCutOfTheStreamGivesTheSameFrames(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 2))
	for round := range 20 {
		raw, d := lanePair(t, 1+rnd.IntN(100_000))
		var stream []byte
		var want [][]byte
		for i := range 30 {
			size := 1 + rnd.IntN([]int{3, 100, 5000, 70_000}[rnd.IntN(4)])
			h, p := frame(t, uint64(i), size, 1+rnd.IntN(min(size, transport.MaxPieces)))
			stream = append(append(stream, h...), p...)
			want = append(want, p)
		}
		cut := rand.New(rand.NewPCG(seed, uint64(100+round)))
		go func() {
			for rest := stream; len(rest) > 0; {
				n := min(len(rest), 1+cut.IntN([]int{10, 5000, 200_000}[cut.IntN(3)]))
				if _, err := raw.Write(rest[:n]); err != nil {
					t.Error(err)
					return
				}
				rest = rest[n:]
			}
			raw.CloseWrite()
		}()
		room, got := make([]byte, transport.HeaderRoom), make([]byte, testPayload)
		for i, p := range want {
			await(t, readOne(d, room, got))
			if !bytes.Equal(got[:len(p)], p) {
				t.Fatalf("seed %d, round %d: frame %d differs", seed, round, i)
			}
		}
		select {
		case err := <-readOne(d, room, got):
			if !errors.Is(err, io.EOF) {
				t.Fatalf("seed %d, round %d: after the last frame: %v", seed, round, err)
			}
		case <-time.After(patience):
			t.Fatalf("seed %d, round %d: the end of the stream is not seen", seed, round)
		}
	}
}

// A reader that sleeps for much of a payload wakes when the stream ends or breaks.
func TestSleepingReaderSeesTheEnd(t *testing.T) {
	h, p := frame(t, 1, 500_000, 1)
	ends := map[string]struct {
		end  func(c *net.TCPConn)
		want error
	}{
		"end":   {func(c *net.TCPConn) { c.CloseWrite() }, io.ErrUnexpectedEOF},
		"reset": {func(c *net.TCPConn) { c.SetLinger(0); c.Close() }, nil},
	}
	for name, tt := range ends {
		t.Run(name, func(t *testing.T) {
			raw, d := lanePair(t, lowWater)
			done := readOne(d, make([]byte, transport.HeaderRoom), make([]byte, testPayload))
			raw.Write(h)
			raw.Write(p[:100_000])
			time.Sleep(20 * time.Millisecond)
			tt.end(raw)
			select {
			case err := <-done:
				if err == nil || errors.Is(err, io.EOF) || tt.want != nil && !errors.Is(err, tt.want) {
					t.Errorf("error %v, want %v", err, tt.want)
				}
			case <-time.After(patience):
				t.Error("the reader sleeps on")
			}
		})
	}
	t.Run("close", func(t *testing.T) {
		raw, d := lanePair(t, lowWater)
		done := readOne(d, make([]byte, transport.HeaderRoom), make([]byte, testPayload))
		raw.Write(h)
		raw.Write(p[:100_000])
		time.Sleep(20 * time.Millisecond)
		d.linger = 0
		d.Close()
		select {
		case err := <-done:
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("error %v", err)
			}
		case <-time.After(patience):
			t.Error("the reader sleeps on")
		}
	})
}

func TestLowWaterOption(t *testing.T) {
	for _, tt := range []struct{ set, want int }{
		{0, lowWater}, {1, 1}, {-5, 1}, {300_000, 300_000}, {1 << 30, maxLowWater},
	} {
		if got := (Options{LowWater: tt.set}).withDefaults().LowWater; got != tt.want {
			t.Errorf("LowWater %d becomes %d, want %d", tt.set, got, tt.want)
		}
	}
}

// The order of the dialling end counts, and both orders carry.
func TestSumsAreOfferedAsMeasured(t *testing.T) {
	xxh3First, crcFirst := []string{"xxh3-64", "crc32c"}, []string{"crc32c", "xxh3-64"}
	for _, tt := range []struct{ dial, listen []string }{
		{xxh3First, xxh3First}, {crcFirst, crcFirst}, {xxh3First, crcFirst}, {crcFirst, xxh3First},
	} {
		measured := 0
		serve := New(Options{Session: smallRings(t)})
		serve.sums = func() []string { return tt.listen }
		dial := New(Options{Session: smallRings(t)})
		dial.sums = func() []string { measured++; return tt.dial }
		s, err := serve.Listen(t.Context(), "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		a, b := connect(t, dial, s)
		if a.Facts().Sum != tt.dial[0] || b.Facts().Sum != tt.dial[0] {
			t.Errorf("%v dials %v: the ends use %s and %s", tt.dial, tt.listen, a.Facts().Sum, b.Facts().Sum)
		}
		if measured != 1 {
			t.Errorf("asked %d times for one connection", measured)
		}
		mustCarry(t, a, b)
	}
}

func TestSumsThatWereChosenAreNotMeasured(t *testing.T) {
	o := Options{Session: smallRings(t)}
	o.Session.Sums = []string{"crc32c"}
	l, s, _ := listen(t, o)
	if l.sums != nil {
		t.Error("measures although the order was given")
	}
	a, b := connect(t, l, s)
	if a.Facts().Sum != "crc32c" || b.Facts().Sum != "crc32c" {
		t.Errorf("the ends use %s and %s", a.Facts().Sum, b.Facts().Sum)
	}
	if New(Options{}).sums == nil {
		t.Error("does not measure by default")
	}
}
