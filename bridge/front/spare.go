package front

import (
	"math/bits"
	"sync"
)

// buffer is memory for one body, or for the beginning of one.
type buffer struct{ b []byte }

// spare are buffers for bodies that nobody uses: those of long prompts are most of what a
// request would leave for the collector. It keeps none for longer than that leaves it, and
// may be used concurrently. The zero value is empty.
type spare struct{ classes [spareClasses]sync.Pool } // of *buffer

// The sizes that are kept: firstBody, and then four for each power of two up to 8 MiB, the
// ids of a million tokens as JSON. Longer ones are rare, and are left to the collector.
const (
	spareClasses = 1 + 4*spareOctaves
	spareOctaves = 7 // from firstBody on
	spareShift   = 14
	spareLeast   = 4 << 10 // below it a buffer costs less than what keeps it
)

// spareSize is the size of a buffer for n bytes, at most a quarter more, and its class; -1:
// it is not kept.
func spareSize(n int) (size, class int) {
	switch {
	case n < spareLeast:
		return n, -1
	case n <= firstBody+1:
		return firstBody + 1, 0
	}
	shift := bits.Len(uint(n-1)) - 3
	q := (n-1)>>shift + 1 // 5 to 8
	if class = 1 + 4*(shift-spareShift) + q - 5; class >= spareClasses {
		return n, -1
	}
	return q << shift, class
}

// get returns a buffer of size bytes, of which it says nothing.
func (s *spare) get(size int) *buffer {
	if n, class := spareSize(size); class >= 0 && n == size {
		if b, ok := s.classes[class].Get().(*buffer); ok {
			return b
		}
	}
	return &buffer{make([]byte, size)}
}

// put takes a buffer back that nobody uses any more; nil is none.
func (s *spare) put(b *buffer) {
	if b == nil {
		return
	}
	if n, class := spareSize(len(b.b)); class >= 0 && n == len(b.b) {
		s.classes[class].Put(b)
	}
}
