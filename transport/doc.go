// Package transport is the contract between code that has blocks and code that
// moves them. It knows nothing of engines, models or sockets.
//
// # Words
//
// A block is the unit of the receiver's store; it is named by its index in the
// transfer's plan. A piece is a byte range of one block's data. A slot is a
// fixed region of a [Ring] that carries one frame: up to [HeaderRoom] bytes of
// header and piece list, and the pieces' bytes after it. A lease is the right
// to fill a slot. A grant is the receiver's promise that one more frame may be
// sent. A transfer is one request's blocks: it has an id, an opaque kind, an
// opaque description (Meta) and an opaque result. A link is a way between two
// hosts (mem, tcp, rdma); a lane is one socket or queue pair of a link.
//
// # Roles
//
// A [Link] dials or listens; both give a [Conn], and from there on the two ends
// are equal: either may open transfers to the other. The end that opens one
// holds an [Outgoing], the end that admits it an [Incoming].
//
// # Who owns bytes
//
// [Outgoing.Lease] hands out a slot, the caller fills it, [Outgoing.Send] takes
// it back. Each lease ends exactly once, by Send or by [Lease.Release]. The slot
// becomes free when every block that the frame touches is acknowledged durable
// (until then the link sends again from it what was damaged on the way), or, for a
// transfer whose source can be read again ([Request.Replayable]), as soon as the
// link no longer needs the bytes. When a connection ends, kept frames are lost with
// it, or go to the request's [Salvage], from where the same transfer takes them
// along to another connection. On the other side [Incoming.Recv] lends a [Delivery]
// until [Delivery.Release].
//
// # Order
//
// Pieces arrive in any order, over any lane. Nothing in this contract promises
// more than: a piece that [Delivery.Pieces] lists was verified against the
// checksum that the sending end computed over it, and a mark (see
// [Outgoing.Flush]) comes after every frame that was sent before it.
//
// # Backpressure
//
// A receiver that does not release deliveries stops granting; Send then waits,
// then Lease waits, and nothing else on the connection does. Memory is bounded
// by the two rings whatever the length of a transfer. Transfers that share a
// receive ring share its slots: none is refused while another could do with less.
//
// # Ends
//
// Contexts bound every call. Close is idempotent, unblocks every call with an
// error that Is [ErrClosed], and returns when the connection's goroutines have
// ended. Everything a peer says is bounded by what was agreed when the
// connection was made, before memory is spent on it.
package transport
