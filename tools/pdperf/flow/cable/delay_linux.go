package cable

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// onTheWay is how many packets may be on their way in one direction; more are lost.
const onTheWay = 4096

// packet is one that is on its way.
type packet struct {
	due  time.Time
	data []byte
}

// delay makes two devices whose packets this process carries.
func (c *Cable) delay(o Options) error {
	for _, e := range []End{A, B} {
		if err := c.In(e, func() (err error) {
			c.tuns[e], err = tunnel(mtu(o))
			return err
		}); err != nil {
			return err
		}
	}
	for _, e := range []End{A, B} {
		c.carry(c.tuns[e], c.tuns[1-e], o)
	}
	return nil
}

// tunnel makes a device whose packets are read from and written to a file.
func tunnel(size int) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	r, err := unix.NewIfreq(device)
	if err == nil {
		r.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
	}
	var s int
	if err == nil {
		s, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	}
	if err == nil {
		r.SetUint32(uint32(size))
		err = unix.IoctlIfreq(s, unix.SIOCSIFMTU, r)
		unix.Close(s) //nolint:errcheck // nothing was written to it
	}
	if err != nil {
		unix.Close(fd) //nolint:errcheck // the same
		return nil, fmt.Errorf("make a tunnel: %w", err)
	}
	return os.NewFile(uintptr(fd), "tunnel"), nil
}

// carry takes packets from one end to the other until an end is closed.
func (c *Cable) carry(from, to *os.File, o Options) {
	way := make(chan packet, onTheWay)
	c.carries.Go(func() {
		defer close(way)
		buf := make([]byte, mtu(o)+64)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			select {
			case way <- packet{time.Now().Add(o.Delay), append([]byte(nil), buf[:n]...)}:
			default:
			}
		}
	})
	c.carries.Go(func() {
		for p := range way {
			time.Sleep(time.Until(p.due))
			to.Write(p.data) //nolint:errcheck // a device that is full loses it, one that is closed ends the reader
		}
	})
}
