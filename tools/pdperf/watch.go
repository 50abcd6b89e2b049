package main

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"pdlink/tools/pdperf/flow"
)

// watched is what programs in the kernel saw of a connection in the measured window, of
// pulled blocks in their warm-up too: flow.Report in a result. Times are upper bounds of
// buckets that grow by a factor of two.
type watched struct {
	Retransmits  uint64   `json:"retransmitted_segments"`
	ZeroWindows  uint64   `json:"zero_windows"`
	WindowClosed float64  `json:"window_closed_seconds"`
	RTT          quantile `json:"rtt_us"`
	Queue        quantile `json:"receive_queue_us"`
	WriteToRead  quantile `json:"write_to_read_us"`
	Softirq      float64  `json:"softirq_seconds"`
	Events       []event  `json:"events"`
	Notes        []string `json:"notes"`
}

// quantile is of a histogram of the kernel.
type quantile struct {
	Count uint64  `json:"count"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
}

// event is something that happened once.
type event struct {
	Seconds float64 `json:"seconds"`
	What    string  `json:"what"`
}

// maxEvents is how many of a run are in its result.
const maxEvents = 64

// watching is what the kernel watches; the zero value watches nothing.
type watching struct {
	io     streams
	w      *flow.Watcher
	before flow.Report // of what came before the measured window
}

// watch has the kernel watch the connections at a URL's port until end is called. It is
// told once where that is not possible.
func watch(io streams, asked bool, url string) *watching {
	none := new(watching)
	if !asked {
		return none
	}
	_, addr, _, err := splitURL(url)
	if err != nil {
		return none
	}
	_, text, err := net.SplitHostPort(addr)
	if err != nil {
		return none // it has no sockets of TCP
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return none
	}
	w, err := flow.Watch(flow.WatchOptions{Ports: []uint16{uint16(port)}})
	if err != nil {
		io.warn([]string{"--ebpf: " + plain(err)})
		return none
	}
	return &watching{io: io, w: w}
}

// begin begins the measured window: what was seen before does not count.
func (w *watching) begin() {
	if w.w != nil {
		w.before = w.w.Report()
	}
}

// end tells what was seen in the measured window; nil where nobody watched.
func (w *watching) end() *watched {
	if w.w == nil {
		return nil
	}
	r := w.w.Report()
	if err := w.w.Close(); err != nil {
		w.io.warn([]string{"--ebpf: " + plain(err)})
	}
	return watchedOf(r.Since(w.before), w.before.At)
}

// watchedOf sums up what was seen of all sockets of a connection, in a window that began
// so long after the watching.
func watchedOf(r flow.Report, began time.Duration) *watched {
	s := &watched{Notes: slices.Clone(r.Notes)}
	lost := r.Lost
	var rtt, queue, through flow.Histogram
	for _, f := range r.Flows {
		s.Retransmits += f.Retransmits
		s.ZeroWindows += f.ZeroWindows
		s.WindowClosed += f.WindowClosed.Seconds()
		s.Softirq += f.Softirq.Seconds()
		for i := range rtt.Buckets {
			rtt.Buckets[i] += f.RTT.Buckets[i]
			queue.Buckets[i] += f.Wait.Buckets[i]
			through.Buckets[i] += f.WriteToRead.Buckets[i]
		}
		for _, e := range f.Events {
			if len(s.Events) < maxEvents {
				s.Events = append(s.Events, event{micro(max(0, e.At-began).Seconds()), string(e.What)})
			} else {
				lost++
			}
		}
	}
	if lost > 0 { // a flow's first ones are kept, those of its warm-up too
		s.Notes = append(s.Notes, fmt.Sprintf("%d events of this window were not kept", lost))
	}
	s.WindowClosed, s.Softirq = micro(s.WindowClosed), micro(s.Softirq)
	of := func(h flow.Histogram) quantile {
		us := func(q float64) float64 { return float64(h.Quantile(q)) / float64(time.Microsecond) }
		return quantile{h.Count(), us(0.5), us(0.99)}
	}
	s.RTT, s.Queue, s.WriteToRead = of(rtt), of(queue), of(through)
	return s
}

// text is what was seen, for people.
func (w *watched) text() string {
	words := []string{fmt.Sprintf("%d segments sent again, window closed %d times for %.3f s, %.3f s in receive softirqs",
		w.Retransmits, w.ZeroWindows, w.WindowClosed, w.Softirq)}
	for _, q := range []struct {
		name string
		quantile
	}{{"round trip", w.RTT}, {"receive queue", w.Queue}, {"write to read", w.WriteToRead}} {
		if q.Count > 0 {
			words = append(words, fmt.Sprintf("%s p50 %.0f, p99 %.0f us at most", q.name, q.P50, q.P99))
		}
	}
	return strings.Join(append(words, w.Notes...), "; ")
}
