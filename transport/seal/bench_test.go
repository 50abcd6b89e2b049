package seal_test

import (
	"bytes"
	"fmt"
	"testing"

	"pdlink/transport/seal"
	"pdlink/transport/wire"
)

// cold is how many frames a benchmark goes through: more than the caches hold.
const cold = 64

// benchFrames runs f over frames of 1 MiB in turn, with every suite and record
// size.
func benchFrames(b *testing.B, f func(b *testing.B, p pair)) {
	for _, suite := range []seal.Suite{seal.AES128GCM, seal.AES256GCM} {
		for record := seal.MinRecord; record <= seal.MaxRecord; record *= 2 {
			b.Run(fmt.Sprintf("%v/%dKiB", suite, record>>10), func(b *testing.B) {
				b.SetBytes(1 << 20)
				b.ReportAllocs()
				f(b, newPair(b, seal.Options{Suite: suite, Record: record}))
			})
		}
	}
}

// BenchmarkSeal seals cold payloads into one buffer, as a lane does.
func BenchmarkSeal(b *testing.B) {
	var frames [cold]frame
	for i := range frames {
		frames[i] = makeFrame(b, 1<<20, 4, uint64(i))
	}
	head, body := make([]byte, seal.MaxHead), make([]byte, 1<<20)
	benchFrames(b, func(b *testing.B, p pair) {
		for i := 0; b.Loop(); i++ {
			f := &frames[i%cold]
			if _, err := p.s.Seal(head, body, f.header, f.payload); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkOpen opens payloads in place. Sealing them again is not in the time,
// copying them to cold memory is: the copy out of the socket, made as bytes
// arrive. BenchmarkCopy is that alone.
func BenchmarkOpen(b *testing.B) {
	slots := make([][]byte, cold)
	for i := range slots {
		slots[i] = make([]byte, 1<<20)
	}
	f := makeFrame(b, 1<<20, 4, 0)
	var header [wire.MaxHeader]byte
	benchFrames(b, func(b *testing.B, p pair) {
		s := sealed{make([]byte, p.s.HeadLen(len(f.header), len(f.payload))), make([]byte, len(f.payload))}
		for i := 0; b.Loop(); i++ {
			b.StopTimer()
			if _, err := p.s.Seal(s.head, s.body, f.header, f.payload); err != nil {
				b.Fatal(err)
			}
			b.StartTimer()
			if err := arrive(p.o, header[:], slots[i%cold], s); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// arrive opens s into payload, 256 KiB at a time.
func arrive(o *seal.Opener, header, payload []byte, s sealed) error {
	if _, _, err := o.OpenHead(header, s.head[:seal.HeadSize]); err != nil {
		return err
	}
	if err := o.OpenRest(header, s.head[seal.HeadSize:]); err != nil {
		return err
	}
	for have := 0; have < len(payload); {
		have += copy(payload[have:], s.body[have:min(have+256<<10, len(payload))])
		if _, err := o.OpenPayload(payload, have); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkCopy is what BenchmarkOpen does beside opening.
func BenchmarkCopy(b *testing.B) {
	src, dst := bytes.Repeat([]byte{1}, 1<<20), make([]byte, cold<<20)
	b.SetBytes(1 << 20)
	for i := 0; b.Loop(); i++ {
		copy(dst[i%cold<<20:][:1<<20], src)
	}
}
