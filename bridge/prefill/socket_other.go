//go:build !linux

package prefill

import (
	"context"
	"net"
	"os"
)

// listenSocket is not available here.
func listenSocket(context.Context, string, bool) (*net.UnixListener, *place, error) {
	return nil, nil, ErrUnavailable
}

// place is nowhere here.
type place struct{ stale bool }

func (*place) leave(bool) error { return nil }

// peer is nobody here.
type peer struct{ uid uint32 }

func peerOf(*net.UnixConn) (peer, error) { return peer{}, ErrUnavailable }

func (peer) known() bool { return false }

func (peer) await() bool { return false }

func (peer) close() {}

// receive is not available here.
func receive(*net.UnixConn, []byte) (int, []*os.File, error) { return 0, nil, ErrUnavailable }

// send is not available here.
func send(*net.UnixConn, []byte, *os.File) error { return ErrUnavailable }
