//go:build !linux

package prefill

import (
	"context"
	"net"
	"os"
)

// listenSocket is not available here.
func listenSocket(context.Context, string) (*net.UnixListener, bool, func() error, error) {
	return nil, false, nil, ErrUnavailable
}

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
