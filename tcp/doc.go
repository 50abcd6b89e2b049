// Package tcp is the link over plain TCP sockets.
//
// A connection is one control socket and one or more lanes, all to the same
// port. The client dials the control socket, both ends exchange hellos, and the
// server's hello carries a random token. The client then dials the lanes; each
// starts with the token and its index, the server binds it to the waiting
// session and answers. From there on package session drives both ends, which
// are equal.
//
// Frames go out with one vectored write and are read into the memory of the
// receiver's slot.
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
// The link has no keys, so it serves and dials loopback addresses only. Every
// address that a host name resolves to must be one, and the address of the
// socket that was really made is looked at again. Before a peer has proven that
// it speaks the protocol it costs the listener one socket, one small buffer and
// one goroutine for a bounded time, and the number of such peers is bounded:
// when there are too many, the one that has waited longest is dropped.
//
// # Close
//
// Close of a connection ends the control direction in order and reads what the
// peer still sends, for a bounded time, so that a last message is not lost by a
// reset. The lanes are closed after that: whatever a receiver confirmed was
// read from them long before.
package tcp
