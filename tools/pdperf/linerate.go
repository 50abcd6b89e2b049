package main

import (
	"fmt"
	"net/netip"

	"pdlink/rdma"
)

// Tolerances of the line-rate check: clocks and the packets that were on their way at
// the edges of the window.
const (
	lineSlack = 0.01    // of the rate
	lineQueue = 4 << 20 // bytes that were queued or in a burst when the window began
)

// lineRate is the most payload that the link can carry one way, in GB/s, and what says
// so; 0 where nothing does.
func (r *result) lineRate() (rate float64, of string) {
	local, err := netip.ParseAddrPort(r.Local)
	if err != nil {
		return 0, ""
	}
	from, to := r.Sender.NIC.port(), r.Receiver.NIC.port()
	if r.Direction != both {
		to.Shaped = 0 // it is for what leaves there
	}
	for _, p := range []struct {
		end  string
		mtu  int
		name string
		rate func() (float64, string)
	}{
		{"sender", from.MTU, from.Name, func() (float64, string) { return from.TCPPayload(local.Addr().Unmap().Is6()) }},
		{"receiver", to.MTU, to.Name, func() (float64, string) { return to.TCPPayload(local.Addr().Unmap().Is6()) }},
	} {
		bytes, by := p.rate()
		if r.Link == rdma.Scheme { // it has headers of its own: the bare rate is no less than what it gets
			port := from
			if p.end == "receiver" {
				port = to
			}
			bytes, by = float64(port.Mbit)*1e6/8, "hardware"
		}
		if bytes > 0 && (rate == 0 || bytes/1e9 < rate) {
			rate, of = bytes/1e9, fmt.Sprintf("%s of %s at the %s, MTU %d", by, p.name, p.end, p.mtu)
		}
	}
	return rate, of
}

// overLine says that more was measured than the link can carry, which then is no
// measurement; "" where it is not so, or not known.
func (r *result) overLine() string {
	if r.Line == 0 || r.Seconds <= 0 {
		return ""
	}
	most := r.Line*(1+lineSlack) + lineQueue/1e9/r.Seconds
	if got := max(r.Push, r.Pull); got > most {
		return fmt.Sprintf("%.3f GB/s were measured and the link carries %.3f (%s)", got, r.Line, r.LineOf)
	}
	return ""
}
