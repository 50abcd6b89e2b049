package tcp

import (
	"net"
	"syscall"
	"testing"

	"pdlink/transport/session"
)

// option reads a socket option back from the kernel.
func option(t *testing.T, c *net.TCPConn, level, name int) int {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var v int
	var got error
	if err := raw.Control(func(fd uintptr) { v, got = syscall.GetsockoptInt(int(fd), level, name) }); err != nil {
		t.Fatal(err)
	}
	if got != nil {
		t.Fatal(got)
	}
	return v
}

func TestSocketOptionsAreWhatTheKernelHas(t *testing.T) {
	drivers := make(chan *driver, 2)
	o := smallRings(t)
	o.Intercept = func(d session.Driver) session.Driver {
		drivers <- d.(*driver)
		return d
	}
	l, s, _ := listen(t, Options{Lanes: 2, Session: o})
	connect(t, l, s)
	for range 2 {
		d := <-drivers
		socks := []*net.TCPConn{d.ctl.conn}
		for i := range d.lanes {
			socks = append(socks, d.lanes[i].conn)
		}
		for i, c := range socks {
			for _, want := range []struct {
				name               string
				level, option, val int
			}{
				{"no delay", syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1},
				{"keep-alive", syscall.SOL_SOCKET, syscall.SO_KEEPALIVE, 1},
				{"keep-alive idle", syscall.IPPROTO_TCP, syscall.TCP_KEEPIDLE, 15},
				{"keep-alive interval", syscall.IPPROTO_TCP, syscall.TCP_KEEPINTVL, 5},
				{"keep-alive count", syscall.IPPROTO_TCP, syscall.TCP_KEEPCNT, 3},
			} {
				if got := option(t, c, want.level, want.option); got != want.val {
					t.Errorf("socket %d: %s is %d, want %d", i, want.name, got, want.val)
				}
			}
		}
	}
}
