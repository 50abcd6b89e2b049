package main

import (
	"net"
	"strings"
	"testing"
)

// placed is a listener at an address.
type placed struct {
	net.Listener
	addr net.TCPAddr
}

func (p placed) Addr() net.Addr { return &p.addr }

func TestAnOpenDoorIsWarnedOf(t *testing.T) {
	for ip, want := range map[string]bool{"127.0.0.1": false, "::1": false, "::": true, "0.0.0.0": true, "10.0.0.5": true} {
		d := &door{listener: placed{addr: net.TCPAddr{IP: net.ParseIP(ip), Port: 8012}}}
		w := d.warnings()
		if (len(w) == 1) != want || want && !strings.Contains(w[0], "can use the decoder") {
			t.Errorf("%s: %q", ip, w)
		}
	}
	if w := (*door)(nil).warnings(); w != nil {
		t.Errorf("no door: %q", w)
	}
}
