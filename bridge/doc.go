// Package bridge turns frames that arrive over any link into blocks that a
// decoder can use, and blocks that a source makes into frames.
//
// The receiving side is a [Receiver]: a transfer with a plan comes in from one
// or several senders, in any order, over any lane; a block is the union of the
// pieces. Each piece was verified by the transport and is written at its
// offset, once: where two senders send the same bytes, the first verified ones
// win. A block that is whole is made durable, becomes visible when every block
// before it is visible, and is then acknowledged to all senders. Whatever
// breaks on the way, what is visible is a contiguous prefix of right blocks,
// and the [Verdict] says how far it got and why.
//
// The sending side is a [Courier]: it fills leases with pieces, leaves out what the
// receiver has already, sends again what the receiver asks for, and does that over
// as many connections as it takes.
//
// A transfer outlives its connections. The receiver keeps what it has of an
// incomplete transfer for a while, says so to a sender that comes again, and gives
// the old connection of that sender up; what is visible stays for good, so a
// receiver that was started again knows it too.
//
// The package knows transports and targets only by interfaces; which link it
// got and what a block's bytes mean is decided in main.
package bridge
