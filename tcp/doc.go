// Package tcp is the link over TCP sockets, sealed where it has keys.
//
// A connection is one control socket and one or more lanes, all to the same
// port. The client dials the control socket, both ends exchange hellos, and the
// server's hello carries a random token. The client then dials the lanes; each
// starts with the token and its index, the server binds it to the waiting
// session and answers. From there on package session drives both ends, which
// are equal. With keys the control socket is a TLS session, and both ends of a
// lane prove that they belong to it.
//
// Frames go out with one vectored write and are read into the memory of the
// receiver's slot. A lane with keys seals a frame into memory of its own, as much
// as its largest frame, because the frame's slot may be sent again; the receiver
// opens it in its slot, a part at a time as it comes.
//
// # Sockets
//
// A reader that wakes for every segment costs more than the copying. So it
// sleeps until a mark of bytes is there, which is what is missing of the payload
// or Options.LowWater, and one read takes the rest of a payload and the header
// of the next frame with it. What such a read brings of the next payload, a few
// KiB, is the only thing that is copied in user space. Where the mark is safe,
// and why, is said at the type source.
//
// TCP_NODELAY is on, keep-alive and the user timeout give up a peer that is gone
// within 30 s, buffers and congestion control are the system's: it tunes them
// better than a fixed size does. SocketReporter tells what the kernel granted.
//
// MSG_ZEROCOPY is not used. A frame would stay on its way until the peer has
// acknowledged it, and WriteFrame returns only when its bytes are free, so a lane
// would have one frame in flight. Its completions are errors to the poller of
// Go's runtime, which then ends the reader of the same socket for good. Loopback
// and virtual devices copy all the same.
//
// # Who may connect
//
// Without keys the link serves and dials loopback addresses only. Every address
// that a host name resolves to must be one, and the address of the socket that
// was really made is looked at again. With keys it takes any address, and only
// peers whose key is pinned, on loopback too; a connection ends within seconds
// when its peer's key no longer is. Ends that do not fit fail with an error that
// says what to run where.
//
// Before a peer has proven that it speaks the protocol, and with keys who it is,
// it costs the listener one socket, one bounded buffer and one goroutine for a
// bounded time, and the number of such peers is bounded: when there are too many,
// one of the host that has the most is dropped, those that have said nothing
// first. A connection that nobody accepts is ended after half a minute, and few of
// them have lanes of a carrier. A peer with keys has so many connections
// (Options.MaxPerPeer) and no more. A Unix socket without keys connects processes of
// one user.
//
// # Codecs
//
// Where both ends name a codec in their hellos, either may code the payloads that it
// sends (Options.Compress). That happens in the lane, below the session and above the
// seal: a session sees the plain frame, sums are of plain bytes, and a payload that
// arrives damaged is sent again, coded or not. Each direction of a connection has a
// codec.Governor, which its lanes tell what they did. It counts what the kernel says was
// delivered, over all connections of the Link, times the hosts that send parts of the
// same transfer.
//
// A lane whose frames are coded has memory for it beside the ring: a frame's payload,
// less a part in 32, for the coded form, and less than 1 MiB of the codec; as much again
// for the other direction. With the largest frames that is 5 MiB a lane and direction,
// 80 MiB with 16 lanes. It is given back when frames go as they are again, and a
// connection that never codes has none.
//
// # Lanes of another kind
//
// With Options.Carrier the lanes are not sockets: once the ends have agreed, a
// carrier.Carrier makes them, and talks to its like through the control channel. Who
// may connect, and what is said when they do not fit, stays as it is here.
//
// # Close
//
// Close of a connection ends the control direction in order and reads what the
// peer still sends, for a bounded time, so that a last message is not lost by a
// reset. The lanes are closed after that: whatever a receiver confirmed was
// read from them long before.
package tcp
