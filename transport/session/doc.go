// Package session is the engine that every link shares: it turns a [Driver],
// which moves control messages and frames and knows nothing of transfers, into
// a [transport.Conn]. A link's work is to make the driver, to let the two ends
// agree with [Handshake] before lanes exist, and to call [New].
//
// # Goroutines
//
// A connection has one reader and one writer of control messages, one reader
// and one writer for each lane, and one goroutine that takes the connection
// down when it ends. None of them ever waits for the application: readers of
// lanes put frames in queues whose capacity was granted before, and answers to
// the peer are either state that merges (grants, acks) or bounded by what the
// peer may have outstanding. Whatever one transfer does, the others go on.
//
// # Ends
//
// A connection ends once, with a cause: this end closed it, the peer did, it
// was cut, or the peer broke the protocol. The cause goes to every call that is
// waiting and to every later one. Slots in flight, slots kept for blocks not
// yet durable, and frames that nobody received go back to their rings at once;
// leases and deliveries that are out go back when their holders end them.
package session
