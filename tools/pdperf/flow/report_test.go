package flow_test

import (
	"reflect"
	"testing"
	"time"

	"pdlink/tools/pdperf/flow"
)

// TestReportSince: what came before a window is not in it, and a flow that began in it is
// there as it is.
func TestReportSince(t *testing.T) {
	seen := func(port uint16, n uint64) flow.Seen {
		s := flow.Seen{
			LocalPort: port, RemotePort: 1, Retransmits: n, ZeroWindows: 2 * n, WindowClosed: time.Duration(n) * time.Second,
			Softirq: time.Duration(n) * time.Millisecond,
		}
		for i := range n {
			s.Events = append(s.Events, flow.Event{At: time.Duration(i), What: flow.Retransmit})
		}
		for _, h := range []*flow.Histogram{&s.RTT, &s.Wait, &s.WriteToRead} {
			h.Buckets[3] = n
		}
		return s
	}
	before := flow.Report{At: time.Second, Flows: []flow.Seen{seen(7, 3)}, Lost: 1}
	after := flow.Report{At: 3 * time.Second, Flows: []flow.Seen{seen(7, 5), seen(8, 2)}, Lost: 4, Notes: []string{"no round trips"}}
	got := after.Since(before)
	want := flow.Report{At: after.At, Flows: []flow.Seen{seen(7, 2), seen(8, 2)}, Lost: 3, Notes: after.Notes}
	want.Flows[0].Events = after.Flows[0].Events[3:]
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if same := after.Since(flow.Report{}); !reflect.DeepEqual(same, after) {
		t.Errorf("since the beginning: %+v", same)
	}
	if len(after.Flows[0].Events) != 5 {
		t.Error("the report itself was changed")
	}
}
