package bridge_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pdlink/bridge"
	"pdlink/transport/session"
)

// TestPortsAreInTheVerdict: what ports counted is asked once, at the end, and both ends
// learn of it.
func TestPortsAreInTheVerdict(t *testing.T) {
	asked := 0
	want := []bridge.PortUse{{Port: "mlx5_0:1", Counts: map[string]uint64{"out_of_sequence": 3, "rx_pkts": 1 << 60}}}
	b := newBench(t, 2, 1000, func(b *bench, o *bridge.Options, _ *session.Options) {
		open := o.Open
		o.Open = func(kind string, meta []byte) (bridge.Opened, error) {
			opened, err := open(kind, meta)
			opened.Ports = func() []bridge.PortUse {
				asked++
				return want
			}
			return opened, err
		}
	})
	out, err := b.dial().Open(t.Context(), request(0, 1))
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint32(2) {
		raw(t, out, i, 0, blockData(int(i), 1000))
	}
	if asked != 0 {
		t.Error("asked before the end")
	}
	res, err := out.Finish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	v, err := bridge.ParseVerdict(res.Result)
	if err != nil || v.State != bridge.Complete || !reflect.DeepEqual(v.Ports, want) {
		t.Errorf("the sender has %+v, %v", v, err)
	}
	if v := b.verdict(); !reflect.DeepEqual(v.Ports, want) || asked != 1 {
		t.Errorf("the receiver has %+v, asked %d times", v, asked)
	}
	if text := v.Ports[0].String(); text != "mlx5_0:1: 3 out_of_sequence, 1152921504606846976 rx_pkts" {
		t.Errorf("%q", text)
	}
}

// TestPortsOfAPeer: what a peer says of its ports is bounded and fit for a terminal.
func TestPortsOfAPeer(t *testing.T) {
	v := bridge.Verdict{State: bridge.Skipped}
	for i := range 20 {
		counts := map[string]uint64{}
		for j := range 300 {
			counts[fmt.Sprintf("%03d\x1b[2J", j)] = 1
		}
		v.Ports = append(v.Ports, bridge.PortUse{Port: fmt.Sprintf("\x07%d%s", i, strings.Repeat("x", 1<<16)), Counts: counts})
	}
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	got, err := bridge.ParseVerdict(text)
	if err != nil || len(got.Ports) != 16 {
		t.Fatalf("%d ports, %v", len(got.Ports), err)
	}
	for _, p := range got.Ports {
		if len(p.Counts) != 256 || len(p.Port) > 1<<12 || strings.ContainsAny(p.String(), "\x07\x1b") {
			t.Errorf("%d counts of a port whose name has %d bytes: %.60q", len(p.Counts), len(p.Port), p.String())
		}
	}
}
