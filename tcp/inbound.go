package tcp

import (
	"errors"
	"io"
)

// inbound reads one lane. Together with the end of what is asked for it takes up
// to aheadBytes of what follows, in the same system call: the header of the next
// frame, as a rule, and the start of its payload, which is then copied. One
// goroutine reads.
type inbound struct {
	sock source

	// ahead[from:to] was read and not asked for yet.
	ahead    [aheadBytes]byte
	from, to int
}

// bulk says what is asked for. It is noPayload, or how many further bytes of the
// same payload follow: they come whatever this end does.
type bulk int

// noPayload is a header: the reader must wake for every byte of it.
const noPayload bulk = -1

// payloadBytes is a payload, or a part of one with so many bytes behind it, so
// that the reader need not wake before there is much of it.
func payloadBytes(behind int) bulk { return bulk(behind) }

// fill reads len(p) bytes into p. Errors: io.EOF when the stream ended before the
// first byte, io.ErrUnexpectedEOF when it ended later, and what the network said.
func (in *inbound) fill(p []byte, what bulk) error {
	n := copy(p, in.ahead[in.from:in.to])
	in.from += n
	if n == len(p) {
		return nil
	}
	spill := in.ahead[:]
	if what > 0 {
		spill = nil // what follows has a place of its own
	}
	got, err := in.sock.read(p[n:], spill, what)
	if err != nil {
		if errors.Is(err, io.EOF) && n+got > 0 {
			return io.ErrUnexpectedEOF
		}
		return err
	}
	in.from, in.to = 0, n+got-len(p)
	return nil
}

// work is what reading a socket took so far.
type work struct {
	reads, marks uint64
}
