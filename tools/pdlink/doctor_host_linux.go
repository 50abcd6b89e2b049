package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// interfaces is the kernel's directory of network interfaces.
const interfaces = "/sys/class/net"

// wireless reports whether an interface has no cable, as far as the kernel tells.
func wireless(iface string) bool { return wirelessIn(interfaces, iface) }

// wirelessIn looks at a directory like that of interfaces: drivers of today link to their
// radio there, older ones have a directory of settings.
func wirelessIn(dir, iface string) bool {
	for _, name := range []string{"phy80211", "wireless"} {
		if _, err := os.Stat(filepath.Join(dir, iface, name)); err == nil {
			return true
		}
	}
	return false
}

// linkSpeed is an interface's speed in Mbit/s, where the kernel knows it.
func linkSpeed(iface string) (mbit int, known bool) {
	b, err := os.ReadFile(filepath.Join(interfaces, iface, "speed"))
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
	level, option := unix.IPPROTO_IP, unix.IP_MTU
	if local, ok := c.LocalAddr().(*net.UDPAddr); ok && local.IP.To4() == nil {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_MTU
	}
	mtu := 0
	controlled := raw.Control(func(fd uintptr) { mtu, err = unix.GetsockoptInt(int(fd), level, option) })
	if controlled != nil || err != nil {
		return 0
	}
	return mtu
}

// listAddresses is the command that lists this host's addresses.
const listAddresses = "ip -brief address"

// whoHas is the command that shows who listens on a port.
func whoHas(port string) string { return "sudo ss -ltnp 'sport = :" + port + "'" }

// lockLimits looks whether memory of a size may be locked, as devices want it.
func lockLimits(ring int64) []finding {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l); err != nil {
		return nil
	}
	if l.Cur < uint64(ring) {
		return []finding{doubt(fmt.Sprintf("in this shell %s of memory may be locked, and the ring has %s: a GPU or a network card would be slower", bytesText(l.Cur), bytesText(uint64(ring))),
			"nothing for the service of `pdlink service print`, which has its own limit; else raise it for the engine and for pdlink: LimitMEMLOCK=infinity of systemd, --ulimit memlock=-1 of docker")}
	}
	return []finding{good("the ring's memory, %s, may be locked", bytesText(uint64(ring)))}
}
