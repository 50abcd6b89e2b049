// Package seal encrypts and authenticates frames, whatever link carries them.
// It does no input or output. PROTOCOL.md of package wire, section 10, is the
// specification; section numbers in comments refer to it.
//
// The two ends of a connection share a [Secret], exported from the TLS session of
// their control channel. Each lane has two directions, each with keys of its own:
// a [Sealer] at one end, an [Opener] at the other. A sealed frame is a head (what
// the frame is, its piece list, the tags of its records) and a body of exactly
// the payload's length. So the body has the place in a slot that the payload
// would have, and is opened where it lies.
//
// What the other end does not get exactly as it was sealed, in that order, on
// that lane, is refused with [ErrForged], and nothing more is opened: frames
// changed, cut, doubled, left out, moved to another lane, direction or
// connection. The end of a lane's stream between two frames is not seen here: how
// many frames a transfer has is said on the control channel.
package seal
