package flow_test

import (
	"errors"
	"os"
	"reflect"
	"testing"
	"time"

	"pdlink/tools/pdperf/flow"
)

// TestSince looks at every field: what counts is a difference, never below zero; what
// does not count is left alone.
func TestSince(t *testing.T) {
	counts := map[string]bool{
		"Sent": true, "Received": true, "Resent": true, "SegmentsOut": true, "SegmentsIn": true, "Retransmits": true,
		"Timeouts": true, "Spurious": true, "Reordered": true, "OutOfOrder": true, "Drops": true,
		"Busy": true, "WindowLimited": true, "BufferLimited": true,
	}
	fill := func(n int64) (c flow.Counters) {
		v := reflect.ValueOf(&c).Elem()
		for i := range v.NumField() {
			switch f := v.Field(i); {
			case f.CanInt():
				f.SetInt(n)
			case f.CanUint():
				f.SetUint(uint64(n))
			}
		}
		return c
	}
	for _, c := range []struct{ after, before, want int64 }{{7, 5, 2}, {5, 7, 0}} {
		got := reflect.ValueOf(fill(c.after).Since(fill(c.before)))
		for i := range got.NumField() {
			name, f, want := got.Type().Field(i).Name, got.Field(i), c.after
			if counts[name] {
				want = c.want
			}
			if f.CanInt() && f.Int() != want || f.CanUint() && f.Uint() != uint64(want) {
				t.Errorf("%s of %d since %d is %v", name, c.after, c.before, f)
			}
		}
	}
	twice := reflect.ValueOf(flow.Sum([]flow.Counters{fill(3), fill(3)}))
	for i := range twice.NumField() {
		switch name, f := twice.Type().Field(i).Name, twice.Field(i); name {
		case "At":
		case "RTT", "RTTVar", "MinRTT", "ReceiveRTT", "MSS", "Reordering":
			if f.Int() != 3 {
				t.Errorf("%s of two is %v", name, f)
			}
		default:
			if f.CanInt() && f.Int() != 6 || f.CanUint() && f.Uint() != 6 {
				t.Errorf("%s of two is %v", name, f)
			}
		}
	}
	if s := flow.Sum(nil); s != (flow.Counters{}) {
		t.Errorf("of none: %+v", s)
	}
}

// TestQuantile is at most a factor of two above, never below.
func TestQuantile(t *testing.T) {
	var h flow.Histogram
	if h.Quantile(0.5) != 0 || h.Count() != 0 {
		t.Error("of nothing")
	}
	h.Buckets[0], h.Buckets[10], h.Buckets[flow.HistogramBuckets-1] = 50, 49, 1
	for _, c := range []struct {
		q    float64
		want time.Duration
	}{{0, time.Microsecond}, {0.49, time.Microsecond}, {0.5, 1024 * time.Microsecond}, {0.98, 1024 * time.Microsecond}, {0.995, time.Microsecond << 25}, {1, time.Microsecond << 25}} {
		if got := h.Quantile(c.q); got != c.want {
			t.Errorf("%g: %v, want %v", c.q, got, c.want)
		}
	}
}

// TestNoSocket says that a file has no counters.
func TestNoSocket(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := flow.Read(int(f.Fd())); !errors.Is(err, flow.ErrUnknown) {
		t.Error(err)
	}
	if _, err := flow.ReadConn(f); !errors.Is(err, flow.ErrUnknown) {
		t.Error(err)
	}
	f.Close()
	if _, err := flow.ReadConn(f); err == nil || errors.Is(err, flow.ErrUnknown) {
		t.Error(err)
	}
}
