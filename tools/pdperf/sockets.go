package main

import (
	"cmp"
	"net/netip"
	"slices"

	"pdlink/tools/pdperf/flow"
	"pdlink/transport/wire"
)

// socketFacts are what the kernel says about one socket of a connection: what it
// granted, and what happened in the measured window.
type socketFacts struct {
	Local        string `json:"local"`
	Remote       string `json:"remote"`
	Congestion   string `json:"congestion_control"`
	MSS          int    `json:"mss"`
	SendBuffer   int    `json:"send_buffer_bytes"`
	RecvBuffer   int    `json:"receive_buffer_bytes"`
	RecvLowWater int    `json:"receive_low_water_bytes"`
	NoDelay      bool   `json:"no_delay"`
	KeepAlive    bool   `json:"keep_alive"`
	UserTimeout  int    `json:"user_timeout_ms"`
	ZeroCopy     bool   `json:"zero_copy"`
	RTTMicros    int    `json:"rtt_us"`
	Window       int    `json:"congestion_window_segments"`

	// In the measured window.
	Sent          int64   `json:"sent_bytes"` // that the peer acknowledged
	Received      int64   `json:"received_bytes"`
	Retransmits   int64   `json:"retransmitted_segments"`
	Busy          float64 `json:"busy_seconds"`           // there was something to send
	WindowLimited float64 `json:"window_limited_seconds"` // the peer's receive window stopped it
	BufferLimited float64 `json:"buffer_limited_seconds"` // the size of the send buffer stopped it
	SegmentsIn    int64   `json:"data_segments_in"`
	ReceiveRTT    int     `json:"receive_rtt_us"`

	Flow flow.Counters `json:"tcp_info"` // all that the kernel says, in the measured window
}

// maxSockets is how many sockets of a connection are reported.
const maxSockets = 16

// socketsSince returns the sockets of after with their counters less those of
// before; both are of the same connection. The sockets that moved most come
// first.
func socketsSince(after, before []socketFacts) []socketFacts {
	for i := range after {
		a := &after[i]
		for _, b := range before {
			if a.Local != b.Local || a.Remote != b.Remote {
				continue
			}
			a.Sent -= b.Sent
			a.Received -= b.Received
			a.Retransmits -= b.Retransmits
			a.Busy -= b.Busy
			a.WindowLimited -= b.WindowLimited
			a.BufferLimited -= b.BufferLimited
			a.SegmentsIn -= b.SegmentsIn
			a.Flow = a.Flow.Since(b.Flow)
		}
	}
	slices.SortStableFunc(after, func(a, b socketFacts) int { return cmp.Compare(b.Sent+b.Received, a.Sent+a.Received) })
	return after[:min(len(after), maxSockets)]
}

// cleanSockets makes what a peer says about its sockets fit to print.
func cleanSockets(s []socketFacts) []socketFacts {
	s = s[:min(len(s), maxSockets)]
	for i := range s {
		for _, text := range []*string{&s[i].Local, &s[i].Remote, &s[i].Congestion} {
			*text = wire.Printable(*text, 64)
		}
	}
	return s
}

// counters are those of the sockets that carry payload: all that moved a hundredth of
// what the first one moved, and none where that is not of the payload's size: there the
// payload goes another way, and a socket with little to do says nothing of it.
func counters(all []socketFacts, payload uint64) (list []flow.Counters) {
	moved := func(s socketFacts) float64 { return float64(s.Sent) + float64(s.Received) }
	if len(all) == 0 || moved(all[0]) < float64(payload)/100 {
		return nil
	}
	for _, s := range all {
		if moved(s) >= moved(all[0])/100 {
			list = append(list, s.Flow)
		}
	}
	return list
}

// endpoints are a connection's two addresses; ok is false where they are not
// socket addresses, as on links without sockets.
func endpoints(local, remote string) (l, r netip.AddrPort, ok bool) {
	l, err1 := netip.ParseAddrPort(local)
	r, err2 := netip.ParseAddrPort(remote)
	return l, r, err1 == nil && err2 == nil
}

// sameConn reports whether a socket from local to remote belongs to the
// connection from l to r: the same hosts, and the same port at the end that
// listens.
func sameConn(local, remote, l, r netip.AddrPort) bool {
	return local.Addr().Unmap() == l.Addr().Unmap() && remote.Addr().Unmap() == r.Addr().Unmap() &&
		(local.Port() == l.Port() || remote.Port() == r.Port())
}
