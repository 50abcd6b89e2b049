//go:build !linux

package main

import (
	"errors"
	"net"
)

// floorLowat is none here.
const floorLowat = 0

// waker does nothing here.
type waker struct{}

func newWaker(_ *net.TCPConn, limit int) (*waker, error) {
	if limit != 0 {
		return nil, errors.New("--lowat is for Linux")
	}
	return &waker{}, nil
}

func (*waker) want(int) error { return nil }
