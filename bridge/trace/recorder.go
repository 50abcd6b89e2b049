package trace

import (
	"cmp"
	"slices"
	"sync"
	"time"
)

// Row is what a span is about: a row of the timeline.
type Row uint8

// The rows, in the order in which bytes come through them.
const (
	Project Row = iota // the source makes pieces
	Lease              // waiting for a free slot
	Grant              // waiting for the receiver's promise of room
	Send               // a frame is written to the wire
	Receive            // a frame's payload is read from the wire; sealed ones are opened
	Verify             // its sums are checked, and it is handed on
	Write              // pieces are written to the store
	Sync               // bytes or names are made durable
	Adopt              // blocks become visible, and are adopted by the decoder
	Await              // waiting for the other end: flush, verdict
	rows
)

// String is the row's name.
func (r Row) String() string {
	if r >= rows {
		return "?"
	}
	return [rows]string{"project", "lease", "grant", "wire out", "wire in", "verify", "write", "fsync", "adopt", "await"}[r]
}

// DefaultMax is how many spans a Recorder keeps by default: at ten spans a frame of
// 4 MiB those of 100 GB, in 16 MB.
const DefaultMax = 1 << 18

// NoBlock is the block of a span that is about none, or about several.
const NoBlock = -1

// Options set a Recorder up. The zero value works.
type Options struct {
	// Process is what the timeline calls this process.
	Process string
	// Max is how many spans are kept; later ones are counted only. Zero or less means
	// DefaultMax.
	Max int
}

// Recorder keeps spans until they are written. A nil one is off: its methods return
// what they were given, record nothing and allocate nothing. It may be used
// concurrently.
type Recorder struct {
	o     Options
	began time.Time

	mu      sync.Mutex // guards what follows
	spans   []span
	dropped uint64
}

// span is what happened between two times, in ns since the recorder began.
type span struct {
	begin, end int64
	name       string
	bytes      int64
	block      int32
	row        Row
}

// New returns a recorder that is on.
func New(o Options) *Recorder {
	if o.Max <= 0 {
		o.Max = DefaultMax
	}
	return &Recorder{o: o, began: time.Now()}
}

// Span is something that goes on. The zero value is of a recorder that is off.
type Span struct {
	r     *Recorder
	name  string
	begin int64
	row   Row
}

// Begin begins a span now. The name says what it is within its row; it should be a
// constant.
func (r *Recorder) Begin(row Row, name string) Span {
	if r == nil {
		return Span{}
	}
	return Span{r: r, name: name, begin: r.now(), row: row}
}

// End ends a span now and records it. block may be NoBlock, and bytes zero.
func (s Span) End(block int, bytes int64) {
	if s.r == nil {
		return
	}
	s.r.add(span{begin: s.begin, end: s.r.now(), name: s.name, bytes: bytes, block: int32(block), row: s.row})
}

// Busy is for how long at least one span of the given rows was going on, of those that
// have ended.
func (r *Recorder) Busy(of ...Row) time.Duration {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	spans := make([]span, 0, len(r.spans))
	for _, s := range r.spans {
		if slices.Contains(of, s.row) {
			spans = append(spans, s)
		}
	}
	r.mu.Unlock()
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.begin, b.begin) })
	var sum, until int64
	for _, s := range spans {
		if s.end > until {
			sum += s.end - max(s.begin, until)
			until = s.end
		}
	}
	return time.Duration(sum)
}

// now is the time since the recorder began, by the monotonic clock.
func (r *Recorder) now() int64 { return int64(time.Since(r.began)) }

func (r *Recorder) add(s span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.spans) >= r.o.Max {
		r.dropped++
		return
	}
	r.spans = append(r.spans, s)
}
