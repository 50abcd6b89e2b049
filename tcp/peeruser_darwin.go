package tcp

import (
	"os"

	"golang.org/x/sys/unix"
)

// userOf returns the user whose process listened at, or dialled, the other end of a
// Unix socket.
func userOf(c socket) (uid uint32, known bool, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false, err
	}
	var cred *unix.Xucred
	if e := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptXucred(int(fd), unix.SOL_LOCAL, unix.LOCAL_PEERCRED) }); e != nil {
		err = e
	}
	if err != nil {
		return 0, false, os.NewSyscallError("getsockopt", err)
	}
	return cred.Uid, true, nil
}
