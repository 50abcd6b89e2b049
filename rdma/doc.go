// Package rdma is the link over RDMA verbs: frames are written by the network card
// into memory of the receiver, without a system call for each. It always compiles;
// whether a host has verbs shows when a connection is wanted.
//
// A [Link] is a carrier.Carrier: the control connection, with who may connect, is
// made by package tcp, and the two ends agree through it on queue pairs. A lane is
// one reliable queue pair. Memory keys are said on the control channel only, and
// what they open lives as long as the connection: queue pairs, protection domain and
// registrations are its own.
//
// # Modes
//
// What the two ends can do decides how frames move; nothing is taken for granted
// that was not offered by both and tried with a frame of a known pattern first.
//
//   - push: the sender WRITEs a frame into a slot of the receiver that was granted,
//     and announces it by a SEND of 32 bytes on the same queue pair or, where that
//     was tried too, by the immediate of the WRITE.
//   - pull: the sender announces what lies in its own memory and the receiver READs
//     it: for ends that let nobody write into their memory.
//   - stride: the frame is cut into equal messages that land in posted receives: for
//     Thunderbolt between Macs, which has nothing else.
//
// # Slots
//
// A receiver has so many slots for each lane, used in turn: frame n of a lane lies in
// slot n modulo their number. It grants them by a count of all frames that may have
// been sent on the lane, tagged with the connection's epoch: so grants that are lost
// or doubled do no harm. A slot is granted again when its frame was copied out and the
// receive that announces the next one is posted, so a sender never meets a receiver
// that is not ready.
//
// The receiver copies each frame out of its slot, while it is in the cache, because
// which memory it belongs in shows only when its header is there; memory that the
// peer can write to is never parsed in place. The sender copies nothing where the
// session's send ring could be registered and frames go in clear; sealed frames are
// sealed into memory of the link.
//
// # Failure
//
// Completions that fail, events of the device, silence: whatever befalls a lane ends
// the connection, and package transport/failover goes on with the next one, or over
// another link. Queue pairs are gone before memory is; memory that the device does
// not let go of stays mapped for good, and its device is not used again.
package rdma
