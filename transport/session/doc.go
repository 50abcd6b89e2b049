// Package session is the engine that every link shares: it turns a [Driver],
// which moves control messages and frames and knows nothing of transfers, into
// a [transport.Conn]. A link's work is to make the driver, to let the two ends
// agree with [Handshake] before lanes exist, and to call [New].
//
// # Goroutines
//
// A connection has one reader and one writer of control messages, one reader
// and one writer for each lane, one goroutine that notices a peer gone silent,
// and one that takes the connection down when it ends. None of them ever waits
// for the application: readers of lanes put frames in queues whose capacity was
// granted before, and answers to the peer are either state that merges (grants,
// acks) or bounded by what the peer may have outstanding. Whatever one transfer
// does, the others go on.
//
// # Shares of a ring
//
// A grant cannot be taken back, so a transfer gets few of them at first and more
// as it uses them: its window grows while it is smaller than what nobody was
// promised, and shrinks, by a slot that came free and is not granted again, while
// it is larger. So a ring divides among the transfers that use it, whatever
// connections they come by; those that are idle hold next to nothing; and what is
// promised never exceeds the slots.
//
// # Sending again
//
// For a source that cannot be read again the sender keeps frames until their
// blocks are durable, and repeats from there what arrived damaged or is missed,
// within the grants and before anything new. A source that can be read again is
// told what is missing.
//
// # Ends
//
// A connection ends once, with a cause: this end closed it, the peer did, it
// was cut, the peer went silent, or it broke the protocol. The cause goes to
// every call that is waiting and to every later one. Slots in flight, slots kept
// for blocks not yet durable, and frames that nobody received go back to their
// rings at once, but for kept frames that the opener wants to take along to another
// connection; leases and deliveries that are out go back when their holders end
// them.
package session
