package why_test

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pdlink/tools/pdperf/flow"
	"pdlink/tools/pdperf/why"
)

// ten is a run of ten seconds at 1 GB/s that nothing stood out of; set changes it.
func ten(set func(*why.Input)) why.Input {
	in := why.Input{
		Seconds: 10, Bytes: 10e9,
		Sender:   why.End{Run: 4, Ready: 0.1, Threads: 1},
		Receiver: why.End{Run: 6, Ready: 0.1, Threads: 1, Backlog: flow.Backlog{Samples: 2000, Waiting: 400}, Disk: 2},
		Flow: why.Flow{
			Sockets: 1, Busy: 9.5, WindowLimited: 0.5, BufferLimited: 5, Segments: 7e6, Retransmits: 100,
			RTT: 200e-6, MinRTT: 150e-6, Window: 6 << 20, Congestion: 3 << 20,
		},
	}
	if set != nil {
		set(&in)
	}
	return in
}

// TestLimit has runs whose cause is known, each with the words that must be said.
func TestLimit(t *testing.T) {
	for _, c := range []struct {
		name string
		set  func(*why.Input)
		want why.Cause
		says []string
	}{
		{"full line", func(in *why.Input) { in.Line = 1.05e9 }, why.Wire, []string{"1 GB/s of the 1.05 GB/s", "95 %"}},
		{"a full line loses segments in its queue", func(in *why.Input) { in.Line, in.Flow.Retransmits = 1.05e9, 1e5 }, why.Wire, []string{"95 %"}},
		{"a full line, busy ends", func(in *why.Input) { in.Line, in.Receiver.Run = 1.01e9, 9.9 }, why.Wire, nil},
		{"disk", func(in *why.Input) { in.Receiver.Disk = 9 }, why.Disk, []string{"store 90 %", "at work 60 %"}},
		{"disk closes the window", func(in *why.Input) {
			in.Receiver.Disk, in.Flow.WindowLimited, in.Receiver.Backlog.Waiting = 9.7, 9, 1990
		}, why.Disk, nil},
		{"loss", func(in *why.Input) { in.Flow.Retransmits, in.Flow.BufferLimited, in.Flow.Timeouts = 70000, 0, 3 }, why.Loss, []string{"1 %", "3 of them after a timeout", "90 %"}},
		{"loss and busy ends", func(in *why.Input) {
			in.Flow.Retransmits, in.Flow.BufferLimited, in.Sender.Ready, in.Receiver.Ready = 70000, 0, 30, 30
		}, why.Loss, nil},
		{"spurious retransmits are no loss", func(in *why.Input) {
			in.Flow.Retransmits, in.Flow.Spurious, in.Flow.BufferLimited = 70000, 69999, 0
		}, why.Wire, []string{"the network held the sender"}},
		{"loss that did not matter", func(in *why.Input) { in.Flow.Retransmits, in.Receiver.Run = 70000, 9.5 }, why.ReceiverCPU, nil},
		{"window", func(in *why.Input) { in.Flow.WindowLimited, in.Flow.Window, in.Flow.Closed = 8, 64<<10, 7 }, why.ReceiveWindow, []string{"80 %", "offers 64 KiB", "closed its window 7 times"}},
		{"window smaller than the path", func(in *why.Input) {
			in.Flow.WindowLimited, in.Flow.Window, in.Flow.Congestion, in.Flow.BufferLimited = 3, 19<<10, 49<<10, 0
		}, why.ReceiveWindow, []string{"30 %", "offers 19 KiB, the network would take 49 KiB"}},
		{"window on a machine that is busy", func(in *why.Input) {
			in.Flow.WindowLimited, in.Receiver.Ready = 8, 20
		}, why.ReceiveWindow, nil},
		{"window, nothing sampled", func(in *why.Input) {
			in.Flow.WindowLimited, in.Receiver.Backlog, in.Flow.ReceiveBuffer = 8, flow.Backlog{}, 128<<10
		}, why.ReceiveWindow, []string{"buffers have 128 KiB"}},
		{"receiver closes the window", func(in *why.Input) {
			in.Flow.WindowLimited, in.Receiver.Run, in.Receiver.Backlog.Waiting = 8, 9.5, 1900
		}, why.ReceiverCPU, []string{"80 %", "at work 95 %"}},
		{"receiver has no slots", func(in *why.Input) { in.Flow.WindowLimited, in.Receiver.Backlog.Waiting = 8, 1900 }, why.Leases, []string{"95 %", "no slot"}},
		{"receiver at work", func(in *why.Input) { in.Receiver.Run, in.Receiver.Backlog.Waiting = 9.5, 1500 }, why.ReceiverCPU, []string{"at work 95 %", "waited for their reader 75 %"}},
		{"receiver without a core", func(in *why.Input) {
			in.Receiver.Run, in.Receiver.Ready, in.Receiver.Backlog.Waiting, in.Sender.Ready = 2, 7.5, 1500, 9
		}, why.ReceiverCPU, []string{"waited for a core 75 %"}},
		{"both at work, bytes wait", func(in *why.Input) { in.Sender.Run, in.Receiver.Run, in.Receiver.Backlog.Waiting = 9.9, 9.1, 1500 }, why.ReceiverCPU, nil},
		{"both at work, none wait", func(in *why.Input) { in.Sender.Run, in.Receiver.Run = 9.1, 9.9 }, why.SenderCPU, nil},
		{"both at work, nothing sampled", func(in *why.Input) {
			in.Sender.Run, in.Receiver.Run, in.Receiver.Backlog = 9.1, 9.9, flow.Backlog{Samples: 19, Waiting: 0}
		}, why.ReceiverCPU, nil},
		{"sender at work", func(in *why.Input) { in.Sender.Run, in.Flow.Busy, in.Flow.BufferLimited = 9.5, 5, 0 }, why.SenderCPU, []string{"at work 95 %"}},
		{"four lanes share the work", func(in *why.Input) { in.Sender.Run, in.Sender.Threads, in.Receiver.Threads = 20, 4, 4 }, why.Unknown, nil},
		{"four lanes at work", func(in *why.Input) { in.Sender.Run, in.Sender.Threads, in.Receiver.Threads = 38, 4, 4 }, why.SenderCPU, nil},
		{"slow filling", func(in *why.Input) { in.Sender.Fill, in.Flow.Busy, in.Flow.BufferLimited = 9, 1, 0 }, why.Leases, []string{"being filled", "90 %"}},
		{"slow filling, unmeasured", func(in *why.Input) { in.Flow.Busy, in.Flow.BufferLimited, in.Flow.WindowLimited = 1, 0, 0 }, why.Leases, []string{"nothing to send 90 %", "too slowly"}},
		{"filling that the link does not wait for", func(in *why.Input) { in.Sender.Fill, in.Receiver.Run, in.Receiver.Backlog.Waiting = 9, 9.5, 1900 }, why.ReceiverCPU, nil},
		{"no slots", func(in *why.Input) { in.Sender.Leases, in.Flow.Busy, in.Flow.BufferLimited = 8, 2, 0 }, why.Leases, []string{"free slot 80 %"}},
		{"no room promised", func(in *why.Input) { in.Sender.Grants, in.Flow.Busy, in.Flow.BufferLimited = 8, 2, 0 }, why.Leases, []string{"promised no room 80 %"}},
		{"a line that is nearly full", func(in *why.Input) { in.Line, in.Flow.BufferLimited, in.Flow.RTT = 1.1e9, 0, 0.02 }, why.Wire, []string{"1 GB/s of the 1.1 GB/s that it can carry", "held the sender 90 %"}},
		{"a line that is not, and the network holds", func(in *why.Input) { in.Line, in.Flow.BufferLimited = 2e9, 0 }, why.Unknown, nil},
		{"queues on the way", func(in *why.Input) { in.Flow.BufferLimited, in.Flow.RTT = 0, 0.02 }, why.Wire, []string{"20ms", "150µs without"}},
		{"nothing stands out", nil, why.Unknown, []string{"nothing stands out", "send buffer full 50 %"}},
		{"no sockets, slow filling", func(in *why.Input) { in.Flow, in.Sender.Fill = why.Flow{}, 8 }, why.Leases, nil},
		{"no sockets, no slots", func(in *why.Input) { in.Flow, in.Sender.Leases = why.Flow{}, 8 }, why.Leases, nil},
		{"no sockets, sender at work", func(in *why.Input) { in.Flow, in.Sender.Run, in.Receiver.Backlog = why.Flow{}, 9, flow.Backlog{} }, why.SenderCPU, nil},
		{"no sockets, full line", func(in *why.Input) { in.Flow, in.Line = why.Flow{}, 1.02e9 }, why.Wire, nil},
		{"one block in flight", func(in *why.Input) {
			in.Sender.InFlight, in.Sender.Acks, in.Flow.Busy, in.Flow.BufferLimited = 1, 9, 5, 0
		}, why.RoundTrip, []string{"one block in flight", "nothing to send 50 %"}},
		{"one block in flight, a little idle", func(in *why.Input) {
			in.Line, in.Sender.InFlight, in.Sender.Acks, in.Flow.Busy = 1.2e9, 2, 9, 8
		}, why.RoundTrip, []string{"2 blocks in flight", "20 %"}},
		{"one block in flight, a full line", func(in *why.Input) { in.Line, in.Sender.InFlight, in.Sender.Acks = 1.05e9, 1, 9 }, why.Wire, nil},
		{"blocks enough in flight, slow filling", func(in *why.Input) {
			in.Sender.InFlight, in.Sender.Acks, in.Flow.Busy, in.Flow.BufferLimited = 3, 1, 1, 0
		}, why.Leases, nil},
		{"one block in flight, busy receiver", func(in *why.Input) {
			in.Sender.InFlight, in.Sender.Acks, in.Flow.Busy, in.Receiver.Run = 1, 9, 5, 9.5
		}, why.ReceiverCPU, nil},
		{"a device is at work", func(in *why.Input) {
			in.Flow, in.Sender.Device, in.Sender.InFlight, in.Sender.Acks, in.Sender.Grants = why.Flow{}, 9.6, 3, 9, 6
		}, why.Wire, []string{"the device had frames to move 96 %", "at work 40 %"}},
		{"a device, below its port's rate", func(in *why.Input) { in.Flow, in.Line, in.Sender.Device = why.Flow{}, 2e9, 9.6 }, why.Wire, []string{"1 GB/s of the 2 GB/s"}},
		{"a device, one block in flight", func(in *why.Input) {
			in.Flow, in.Sender.Device, in.Sender.InFlight, in.Sender.Acks = why.Flow{}, 4, 1, 9.5
		}, why.RoundTrip, []string{"nothing to send 60 %"}},
		{"a device, no room promised", func(in *why.Input) {
			in.Flow, in.Sender.Device, in.Sender.InFlight, in.Sender.Grants = why.Flow{}, 4, 3, 7
		}, why.Leases, []string{"promised no room 70 %"}},
		{"a device, busy sender", func(in *why.Input) { in.Flow, in.Sender.Device, in.Sender.Run = why.Flow{}, 4, 9.5 }, why.SenderCPU, nil},
		{"no sockets, nothing", func(in *why.Input) { in.Flow = why.Flow{} }, why.Unknown, []string{"no socket to ask"}},
		{"no time", func(in *why.Input) { in.Seconds = 0 }, why.Unknown, []string{"nothing was measured"}},
		{"less than none", func(in *why.Input) { in.Receiver.Disk = -1 }, why.Unknown, []string{"nothing was measured"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v := why.Limit(ten(c.set))
			if v.Cause != c.want || v.Share < 0 || v.Share > 1 || (v.Share == 0) != (c.want == why.Unknown) {
				t.Errorf("%s (%.2f), want %s", v, v.Share, c.want)
			}
			for _, words := range c.says {
				if !strings.Contains(v.String(), words) {
					t.Errorf("%q does not say %q", v, words)
				}
			}
			if text := v.String(); strings.ContainsAny(text, "\n") || strings.Contains(text, "NaN") || !strings.HasPrefix(text, string(c.want)+": ") {
				t.Errorf("%q", text)
			}
		})
	}
}

// FuzzLimit says one sentence of whatever another end says.
func FuzzLimit(f *testing.F) {
	device := ten(func(in *why.Input) { in.Flow, in.Sender.Device, in.Sender.InFlight = why.Flow{}, 3, 1 })
	for _, in := range []why.Input{ten(nil), device, {}, {Seconds: 1}} {
		text, err := json.Marshal(in)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(`{"seconds":1e-300,"bytes":18446744073709551615,"line":1e308,"receiver":{"backlog":{"samples":-5,"waiting":9}},"sender":{"threads":-1}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var in why.Input
		if json.Unmarshal(text, &in) != nil {
			return
		}
		v := why.Limit(in)
		if v.Share < 0 || v.Share > 1 || math.IsNaN(v.Share) || v.Cause == "" || v.Evidence == "" || strings.ContainsAny(v.String(), "\n") || strings.Contains(v.String(), "NaN") {
			t.Errorf("%+v of %s", v, text)
		}
	})
}

// TestFlowOf takes means of times and sums of what is counted.
func TestFlowOf(t *testing.T) {
	one := flow.Counters{
		Busy: 4 * time.Second, WindowLimited: time.Second, BufferLimited: 2 * time.Second, SegmentsOut: 100, Retransmits: 3, Timeouts: 1,
		Spurious: 2, RTT: time.Millisecond, MinRTT: 2 * time.Microsecond, SendWindow: 1000, Window: 10, MSS: 1448,
	}
	two := one
	two.Busy, two.RTT, two.MinRTT = 2*time.Second, 3*time.Millisecond, time.Microsecond
	want := why.Flow{
		Sockets: 2, Busy: 3, WindowLimited: 1, BufferLimited: 2, Segments: 200, Retransmits: 6, Timeouts: 2, Spurious: 4,
		RTT: 0.003, MinRTT: 0.000001, Window: 2000, Congestion: 28960,
	}
	if got := why.FlowOf([]flow.Counters{one, two}); got != want {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if got := why.FlowOf(nil); got != (why.Flow{}) {
		t.Errorf("of none: %+v", got)
	}
}

func ExampleLimit() {
	fmt.Println("Limited by:", why.Limit(why.Input{
		Seconds: 10, Bytes: 2e9, Line: 1.17e9,
		Sender: why.End{Run: 1, Threads: 1}, Receiver: why.End{Run: 2, Threads: 1},
		Flow: why.Flow{Sockets: 1, Busy: 9.9, Segments: 1_400_000, Retransmits: 14_000, Timeouts: 2},
	}))
	// Output:
	// Limited by: loss: 1 % of 1400000 segments were lost and sent again, 2 of them after a timeout; congestion control held the sender 99 % of the time
}
