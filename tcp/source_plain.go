//go:build !linux && !darwin

package tcp

import (
	"errors"
	"io"
	"sync/atomic"
)

// source reads a socket with the means of package net alone. One goroutine
// reads; done may be called by any.
type source struct {
	conn  socket
	reads atomic.Uint64
}

// open prepares c for reading.
func (s *source) open(c socket, _ int) error {
	s.conn = c
	return nil
}

// read reads len(p) bytes into p and nothing into spill. With an error n is what
// had been read.
func (s *source) read(p, _ []byte, _ bulk) (n int, err error) {
	for n < len(p) && err == nil {
		var got int
		got, err = s.conn.Read(p[n:])
		s.reads.Add(1)
		n += got
	}
	if n == len(p) && errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

// done is what reading took so far.
func (s *source) done() work { return work{reads: s.reads.Load()} }
