package main

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"pdlink/tools/pdperf/flow"
)

// TestWatchedEvents: an event's time is from the beginning of the window, and what of a
// window was not kept is said.
func TestWatchedEvents(t *testing.T) {
	const began = 5 * time.Second
	none := []string{"no softirq time"}
	before := flow.Report{At: began, Flows: []flow.Seen{{LocalPort: 1, Events: []flow.Event{{At: time.Second, What: flow.WindowShut}}}}, Lost: 2}
	after := before
	after.At, after.Notes, after.Flows = 2*began, none, []flow.Seen{before.Flows[0]}
	after.Flows[0].Events = append(slices.Clone(before.Flows[0].Events), flow.Event{At: began + 250*time.Millisecond, What: flow.Retransmit})
	got := watchedOf(after.Since(before), before.At)
	if want := []event{{0.25, "retransmit"}}; !reflect.DeepEqual(got.Events, want) || !reflect.DeepEqual(got.Notes, none) {
		t.Errorf("%+v, notes %q, want %+v", got.Events, got.Notes, want)
	}
	after.Lost += 3
	after.Flows = append(after.Flows, flow.Seen{LocalPort: 2, Events: make([]flow.Event, maxEvents)})
	got = watchedOf(after.Since(before), before.At)
	if len(got.Events) != maxEvents || !slices.Contains(got.Notes, "4 events of this window were not kept") || len(none) != 1 {
		t.Errorf("%d events, notes %q", len(got.Events), got.Notes)
	}
}
