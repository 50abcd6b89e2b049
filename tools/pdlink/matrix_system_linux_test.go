//go:build faults

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"unsafe"
)

// Instructions and offsets of classic BPF (linux/filter.h, linux/bpf_common.h).
const (
	bpfLoad    = syscall.BPF_LD | syscall.BPF_W | syscall.BPF_ABS
	bpfEqual   = syscall.BPF_JMP | syscall.BPF_JEQ | syscall.BPF_K
	bpfAtLeast = syscall.BPF_JMP | syscall.BPF_JGE | syscall.BPF_K
	bpfReturn  = syscall.BPF_RET | syscall.BPF_K
	bpfRandom  = 0xfffff000 + 56 // SKF_AD_OFF + SKF_AD_RANDOM: not the packet, a random number
	bpfKeep    = 0xffffffff      // of a socket filter: the whole packet
	soAttach   = 26              // SO_ATTACH_FILTER
)

// bpfProgram is struct sock_fprog.
type bpfProgram struct {
	n      uint16
	filter *syscall.SockFilter
}

// dropPackets has the kernel drop a percentage of the packets that come for a
// socket, as a bad cable would: TCP sends them again. It takes no rights.
func dropPackets(c *net.TCPConn, percent int) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	limit := uint32(uint64(percent) << 32 / 100)
	filter := []syscall.SockFilter{
		{Code: bpfLoad, K: bpfRandom},
		{Code: bpfAtLeast, K: limit, Jf: 1},
		{Code: bpfReturn, K: bpfKeep},
		{Code: bpfReturn, K: 0},
	}
	prog := bpfProgram{uint16(len(filter)), &filter[0]}
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall6(syscall.SYS_SETSOCKOPT, fd, syscall.SOL_SOCKET, soAttach,
			uintptr(unsafe.Pointer(&prog)), unsafe.Sizeof(prog), 0)
	})
	runtime.KeepAlive(filter)
	if err == nil && errno != 0 {
		err = os.NewSyscallError("setsockopt SO_ATTACH_FILTER", errno)
	}
	return err
}

// Constants of seccomp (linux/seccomp.h, linux/audit.h).
const (
	seccompFilterMode = 1
	seccompTSync      = 1
	seccompErrno      = 0x00050000
	seccompAllow      = 0x7fff0000
	prSetNoNewPrivs   = 38
)

// breakCalls makes system calls of this process fail with EIO from now on, in all
// of its threads and for good: a disk that died.
func breakCalls(numbers ...uintptr) error {
	filter := []syscall.SockFilter{{Code: bpfLoad, K: 0}} // the call's number
	for _, n := range numbers {
		filter = append(filter,
			syscall.SockFilter{Code: bpfEqual, K: uint32(n), Jf: 1},
			syscall.SockFilter{Code: bpfReturn, K: seccompErrno | uint32(syscall.EIO)})
	}
	filter = append(filter, syscall.SockFilter{Code: bpfReturn, K: seccompAllow})
	prog := bpfProgram{uint16(len(filter)), &filter[0]}
	// Without new rights no privilege is needed; the filter's call sets it for
	// the other threads too.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, _, errno := syscall.Syscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0); errno != 0 {
		return os.NewSyscallError("prctl PR_SET_NO_NEW_PRIVS", errno)
	}
	call := map[string]uintptr{"amd64": 317, "arm64": 277}[runtime.GOARCH] // package syscall has it for one of them only
	r, _, errno := syscall.Syscall(call, seccompFilterMode, seccompTSync, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(filter)
	switch {
	case errno != 0:
		return os.NewSyscallError("seccomp", errno)
	case r != 0:
		return fmt.Errorf("seccomp: thread %d has other filters", r)
	}
	return nil
}

// writeCalls and syncCalls are how files are written and made durable.
func writeCalls() []uintptr {
	return []uintptr{syscall.SYS_PWRITE64, syscall.SYS_PWRITEV}
}

func syncCalls() []uintptr { return []uintptr{syscall.SYS_FSYNC, syscall.SYS_FDATASYNC} }

// mountDisk mounts a disk in memory of so many bytes at an empty directory of this
// mount namespace.
func mountDisk(dir string, size int64) error {
	return syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", size))
}

func unmountDisk(dir string) { syscall.Unmount(dir, syscall.MNT_DETACH) }

// fillDisk takes the space that a disk has left, but for about so many bytes, with
// a file.
func fillDisk(path string, leave int64) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for tries := 0; ; tries++ {
		var st syscall.Statfs_t
		if err := syscall.Fstatfs(int(f.Fd()), &st); err != nil {
			return err
		}
		n := int64(st.Bavail)*st.Bsize - leave
		if n <= 0 {
			return nil
		}
		err = syscall.Fallocate(int(f.Fd()), 0, 0, n)
		if !errors.Is(err, syscall.ENOSPC) || tries == 9 { // else somebody was faster
			return err
		}
	}
}

// fdCount is how many descriptors a process has open; 0 when it is gone.
func fdCount(pid int) int {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return 0
	}
	return len(entries)
}

// getTCPInfo reads struct tcp_info of a socket.
func getTCPInfo(fd uintptr, info []byte) error {
	n := uint32(len(info))
	_, _, errno := syscall.Syscall6(syscall.SYS_GETSOCKOPT, fd, syscall.IPPROTO_TCP, syscall.TCP_INFO,
		uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&n)), 0)
	if errno != 0 {
		return os.NewSyscallError("getsockopt TCP_INFO", errno)
	}
	return nil
}

// residentBytes is the memory that a process has; 0 when it is gone.
func residentBytes(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	var total, resident int64
	if _, err := fmt.Sscan(string(text), &total, &resident); err != nil {
		return 0
	}
	return resident * int64(os.Getpagesize())
}
