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

// fill reads len(p) bytes into p. bulk says that p is (the rest of) a payload,
// so that the reader need not wake before there is much of it. Errors: io.EOF
// when the stream ended before the first byte, io.ErrUnexpectedEOF when it ended
// later, and what the network said.
func (in *inbound) fill(p []byte, bulk bool) error {
	n := copy(p, in.ahead[in.from:in.to])
	in.from += n
	if n == len(p) {
		return nil
	}
	got, err := in.sock.read(p[n:], in.ahead[:], bulk)
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
