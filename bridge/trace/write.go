package trace

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
)

// event is one of the trace format's events: "Trace Event Format", section Event
// Descriptions. Times are in microseconds.
type event struct {
	Name     string      `json:"name"`
	Category string      `json:"cat,omitempty"`
	Phase    string      `json:"ph"`
	Time     json.Number `json:"ts,omitempty"`
	Duration json.Number `json:"dur,omitempty"`
	Process  int         `json:"pid"`
	Thread   int         `json:"tid"`
	Args     any         `json:"args,omitempty"`
}

type spanArgs struct {
	Block *int32 `json:"block,omitempty"`
	Bytes int64  `json:"bytes,omitempty"`
}

type nameArgs struct {
	Name string `json:"name"`
}

type orderArgs struct {
	Order int `json:"sort_index"`
}

// Write writes what was recorded so far as trace JSON. A recorder that is off writes
// nothing.
func (r *Recorder) Write(w io.Writer) error {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	spans, dropped := slices.Clone(r.spans), r.dropped
	r.mu.Unlock()
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"spans\":\"%d\",\"dropped\":\"%d\"},\"traceEvents\":[\n", len(spans), dropped)
	e := json.NewEncoder(b) // an event a line
	pid := os.Getpid()
	first := event{Name: "process_name", Phase: "M", Process: pid, Args: nameArgs{r.o.Process}}
	if err := e.Encode(first); err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	put := func(ev event) error {
		ev.Process = pid
		b.WriteByte(',') //nolint:errcheck // Flush says so
		return e.Encode(ev)
	}
	if err := r.events(spans, put); err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	b.WriteString("]}\n") //nolint:errcheck // Flush says so
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write trace: %w", err)
	}
	return nil
}

// events puts the names of the rows that are in use, and the spans. Spans of a row
// that overlap are drawn beside each other, each in a line of its own, however many
// they are.
func (r *Recorder) events(spans []span, put func(event) error) error {
	slices.SortStableFunc(spans, func(a, b span) int { return cmp.Or(cmp.Compare(a.row, b.row), cmp.Compare(a.begin, b.begin)) })
	base := r.began.UnixNano()
	var lines lines // of the row at hand
	first := 1      // thread of its first one
	for i, s := range spans {
		if i > 0 && s.row != spans[i-1].row {
			first += lines.n
			lines.clear()
		}
		line, made := lines.take(s.begin, s.end)
		thread := first + line
		if made {
			for _, ev := range []event{
				{Name: "thread_name", Phase: "M", Thread: thread, Args: nameArgs{s.row.String()}},
				{Name: "thread_sort_index", Phase: "M", Thread: thread, Args: orderArgs{thread}},
			} {
				if err := put(ev); err != nil {
					return err
				}
			}
		}
		ev := event{Name: s.name, Category: s.row.String(), Phase: "X", Time: micros(base + s.begin), Duration: micros(s.end - s.begin), Thread: thread}
		args := spanArgs{Bytes: s.bytes}
		if s.block != NoBlock {
			args.Block = &s.block
		}
		if args != (spanArgs{}) {
			ev.Args = args
		}
		if err := put(ev); err != nil {
			return err
		}
	}
	return nil
}

// micros is nanoseconds as microseconds, exactly.
func micros(ns int64) json.Number { return json.Number(fmt.Sprintf("%d.%03d", ns/1000, ns%1000)) }
