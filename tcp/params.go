package tcp

import (
	"net"
	"time"

	"pdlink/transport/wire"
)

// MaxLanes bounds Options.Lanes: the protocol's limit, far beyond the point
// where another socket adds rate. One fills 10 Gbit/s.
const MaxLanes = wire.MaxLanes

const (
	// maxStrangers is how many sockets may be open on one listener whose first
	// message has not been read. An honest peer is one of them for a round
	// trip; 64 of them cost less than 1 MiB.
	maxStrangers = 64

	// maxPending is how many sessions of one listener may wait for their
	// lanes. Each holds up to MaxLanes sockets.
	maxPending = 32

	// maxUnaccepted is how many connections may wait for Accept. They hold
	// sockets and no ring.
	maxUnaccepted = 16

	// controlBuffer is the read buffer of a control socket: a burst of grants
	// and acks of one window in one system call.
	controlBuffer = 16 << 10

	// controlStep is how much a control message's memory grows at a time; it
	// doubles from there, so memory is at most twice what has arrived.
	controlStep = 64 << 10

	// lingerTime bounds how long Close waits for the peer to end its
	// direction: a round trip and the time to read what is in its socket
	// buffer (6 MiB at 100 Mbit/s are 0.5 s).
	lingerTime = time.Second

	// lingerBytes bounds what Close reads away meanwhile: the largest control
	// message and as much again.
	lingerBytes = 32 << 20

	// acceptPause is how long the listener waits after accept failed, for
	// example for want of file descriptors; it doubles up to acceptPauseMax.
	acceptPause    = 5 * time.Millisecond
	acceptPauseMax = time.Second
)

// keepAlive finds a peer that vanished from an idle connection (cable, power)
// within 30 s. The kernel's own values take two hours.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}
}
