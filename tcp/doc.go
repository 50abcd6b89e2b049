// Package tcp is the link over plain TCP sockets.
//
// A connection is one control socket and one or more lanes, all to the same
// port. The client dials the control socket, both ends exchange hellos, and the
// server's hello carries a random token. The client then dials the lanes; each
// starts with the token and its index, the server binds it to the waiting
// session and answers. From there on package session drives both ends, which
// are equal.
//
// Frames go out with one vectored write and are read straight into the memory
// of the receiver's slot: nothing is copied in user space. There are no other
// socket options than TCP_NODELAY and keep-alive; buffers are left to the
// kernel, which tunes them better than a fixed size does.
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
