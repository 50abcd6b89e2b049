package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// linkSpeed is an interface's speed in Mbit/s, where the kernel knows it.
func linkSpeed(iface string) (mbit int, known bool) {
	b, err := os.ReadFile(filepath.Join("/sys/class/net", iface, "speed"))
	if err != nil {
		return 0, false
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	return n, err == nil && n > 0
}

// pathMTU is what the kernel knows of a connection's way; 0 where it does not.
func pathMTU(c net.Conn) int {
	u, ok := c.(*net.UDPConn)
	if !ok {
		return 0
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return 0
	}
	mtu := 0
	err = raw.Control(func(fd uintptr) {
		if mtu, err = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU); err != nil {
			mtu = 0
		}
	})
	if err != nil {
		return 0
	}
	return mtu
}

// listAddresses is the command that lists this host's addresses.
const listAddresses = "ip -brief address"

// whoHas is the command that shows who listens on a port.
func whoHas(port string) string { return "sudo ss -ltnp 'sport = :" + port + "'" }

// rlimitMemlock is RLIMIT_MEMLOCK, which package syscall does not name.
const rlimitMemlock = 8

// lockLimits looks whether memory of a size may be locked, as devices want it.
func lockLimits(ring int64) []finding {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(rlimitMemlock, &l); err != nil {
		return nil
	}
	if l.Cur < uint64(ring) {
		return []finding{doubt(fmt.Sprintf("%s of memory may be locked, the ring has %s: a GPU or a network card would be slower", bytesText(l.Cur), bytesText(uint64(ring))),
			"raise the limit for the engine and for pdlink: LimitMEMLOCK=infinity of systemd, --ulimit memlock=-1 of docker")}
	}
	return []finding{good("the ring's memory, %s, may be locked", bytesText(uint64(ring)))}
}
