package host

import (
	"math"
	"testing"
)

// TestPayload: figures of the links that people have, by hand.
func TestPayload(t *testing.T) {
	for _, c := range []struct {
		port Port
		v6   bool
		want float64 // GB/s
		of   string
	}{
		{Port{MTU: 1500, Mbit: 10000}, false, 1.1769, "hardware"},
		{Port{MTU: 9000, Mbit: 10000}, false, 1.2376, "hardware"},
		{Port{MTU: 1500, Mbit: 10000}, true, 1.1606, "hardware"},
		{Port{MTU: 1500, Shaped: 1.25e9}, false, 1.1955, "token bucket"},
		{Port{MTU: 1500, Shaped: 125e6, Mbit: 10000}, false, 0.11955, "token bucket"},
		{Port{MTU: 1500, Shaped: 125e9, Mbit: 10000}, false, 1.1769, "hardware"},
		{Port{MTU: 1500}, false, 0, ""},
		{Port{MTU: 0, Mbit: 10000}, false, 0, ""},
		{Port{}, false, 0, ""},
	} {
		got, of := c.port.TCPPayload(c.v6)
		if math.Abs(got/1e9-c.want) > 1e-4 || of != c.of {
			t.Errorf("%+v: %v of %q, want %v of %q", c.port, got/1e9, of, c.want, c.of)
		}
	}
}

func TestThisHost(t *testing.T) {
	f := Read()
	if f.Kernel == "" || f.Boot != Read().Boot {
		t.Errorf("%+v", f)
	}
	for _, addr := range []string{"127.0.0.1:1", "127.3.4.5:1", "[::ffff:127.0.0.1]:9"} {
		p := PortOf(addr)
		if p.Name == "" || p.MTU < 1500 || p.Mbit != 0 {
			t.Errorf("%s: %+v", addr, p)
		}
		if bytes, _ := p.TCPPayload(false); bytes != 0 {
			t.Errorf("%s carries %v", addr, bytes)
		}
	}
	for _, addr := range []string{"", "mem", "192.0.2.1:1", "no address:1"} {
		if p := PortOf(addr); p.Name != "" {
			t.Errorf("%q: %+v", addr, p)
		}
	}
	a := ReadLoad()
	if d := ReadLoad().Since(a); d.Known && (d.Work < 0 || d.Steal < 0 || d.Softirq < 0) {
		t.Errorf("%+v", d)
	}
	if d := a.Since(Load{}); d.Known {
		t.Errorf("%+v since nothing", d)
	}
}
