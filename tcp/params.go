package tcp

import (
	"net"
	"time"

	"pdlink/transport"
	"pdlink/transport/seal"
	"pdlink/transport/wire"
)

// MaxLanes bounds Options.Lanes: the protocol's limit, far beyond the point
// where another socket adds rate. One fills 10 Gbit/s.
const MaxLanes = wire.MaxLanes

const (
	// maxStrangers is how many sockets may be open on one listener whose first
	// message has not been read. An honest peer is one of them for a round
	// trip, with keys for two. 64 of them cost less than 1 MiB, with keys, when
	// they send the largest certificates that TLS takes, 20 MiB.
	maxStrangers = 64

	// maxGreeters is how many goroutines may have a socket that is no connection
	// yet, or that nobody was told of yet: strangers, sessions that wait for
	// lanes, peers that are told why they cannot connect, and as many strangers
	// again, because one that was dropped for a newer one may still be in the
	// mathematics of TLS, for a millisecond. Nothing is accepted while there are
	// as many.
	maxGreeters = 2*maxStrangers + maxPending + maxTalks

	// maxTalks is how many peers that are not strangers any more may be told at a
	// time why they cannot connect, a second each at the most. Others are dropped
	// without waiting for them.
	maxTalks = 16

	// maxPerPeer is the default of Options.MaxPerPeer: several processes of a
	// prefill host, with several links each.
	maxPerPeer = 64

	// maxPending is how many sessions of one listener may wait for their
	// lanes. Each holds up to MaxLanes sockets.
	maxPending = 32

	// maxUnaccepted is how many connections may wait for Accept. They hold
	// sockets and no ring. One more is dropped at once.
	maxUnaccepted = 32

	// maxCarried is how many connections of one listener may have lanes of a carrier,
	// or be about to, that nobody accepted yet: with package rdma each lane has some
	// 20 MiB that the device may reach. One more waits for its turn, as long as its
	// handshake may take.
	maxCarried = 16

	// acceptTime is how long a complete connection waits for Accept. Whoever dialled
	// it and wants something has given it up long before (session's LostAfter).
	acceptTime = 30 * time.Second

	// retryPause is how long Dial waits before its second attempt, and up to as
	// long again, when the other end hung up before it said anything: as one does
	// that is flooded by strangers.
	retryPause = 50 * time.Millisecond

	// byeTime bounds how long the end of a revoked peer's connection waits for
	// the word that says so to be written.
	byeTime = 500 * time.Millisecond

	// lowWater is the default of Options.LowWater. 1 MiB costs the receiver a
	// third less CPU than waking for every segment at 10 Gbit/s, and two thirds
	// less at 2.5 and 1 Gbit/s. 256 KiB gives most of that; 4 MiB costs rate,
	// because the window is then emptied in steps as large as itself.
	lowWater = 1 << 20

	// maxLowWater bounds Options.LowWater: no frame is larger.
	maxLowWater = transport.MaxSlot

	// aheadBytes is how far a read of a payload may reach past its end: the
	// longest header, so that in a steady flow the next frame needs no call of
	// its own. What it brings of a payload is copied, at most 0.4 % of a frame
	// of 1 MiB.
	aheadBytes = wire.MaxHeader

	// restFrames is how many frames of a connection go by between two looks at whether
	// its governor still rests. A look costs a clock's reading and a lock, up to 0.5 µs
	// where the clock is a virtual machine's; at 1 Gbit/s they come twice a second with
	// frames of 4 MiB. A lane lets at least leastFrames of its own go by.
	restFrames  = 16
	leastFrames = 4

	// plainFrames is how many frames in a row have to come as they are for a lane to
	// give back its memory for packed ones: more than a governor's period of plain
	// payloads has, up to some Gbit/s.
	plainFrames = 256

	// openStep is how many bytes of a sealed payload are read before they are
	// opened: a part that is still in the second-level cache, of whole records.
	openStep = 2 * seal.DefaultRecord

	// userTimeout is how long the kernel waits for the peer to acknowledge
	// bytes before it gives the connection up: as long as keepAlive gives a
	// peer that is idle. It also ends a peer that has not read for that long; a
	// live one always reads, because no frame is sent without a slot for it.
	// Whole seconds. The kernel's own patience is about 15 minutes.
	userTimeout = 30 * time.Second

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

	// strangerBytes bounds what is read away of a peer whose key is unknown, so
	// that it learns so: the end of its handshake and a hello.
	strangerBytes = 64 << 10

	// lingerBytes bounds what Close reads away meanwhile: the largest control
	// message and as much again.
	lingerBytes = 32 << 20

	// maxSocketPath bounds the path of a Unix socket, in bytes: macOS has 104 and
	// Linux 108, with a zero at the end.
	maxSocketPath = 103

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
