//go:build !nordma && (amd64 || arm64)

package verbs

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// errnoLocation is the C library's function that tells where errno lies.
	errnoLocation = "__errno_location"

	libraryCure = "install rdma-core and the provider of the card: ibverbs-providers on Debian"
	kernelCure  = "the kernel has no RDMA: load ib_uverbs and the driver of the card"
	openCure    = "may this user open /dev/infiniband/uverbs*?"
	memoryCure  = "raise it: ulimit -l, LimitMEMLOCK= of the service, memlock in limits.conf"

	sysfs = "/sys/class/infiniband"
)

func libraryNames() []string { return []string{"libibverbs.so.1"} }

// classOf tells whose provider a device has: its driver's, and for Soft-RoCE, which
// hangs below a network interface, by the file that says which.
func classOf(name string) Class {
	if driver, err := os.Readlink(filepath.Join(sysfs, name, "device", "driver")); err == nil {
		if strings.HasPrefix(filepath.Base(driver), "mlx5") {
			return ClassMellanox
		}
		return ClassOther
	}
	if _, err := os.Stat(filepath.Join(sysfs, name, "parent")); err == nil {
		return ClassSoft
	}
	return ClassOther
}

// memoryNow asks the kernel. Groups of version 1 are not looked at.
func memoryNow() memory {
	m := memory{limit: noLimit, group: noLimit}
	read := func(path ...string) string {
		b, err := os.ReadFile(filepath.Join(path...))
		if err != nil {
			return "" // as where there is no such limit
		}
		return string(b)
	}
	var bound bool
	m.locked, bound = lockedIn(read("/proc/self/status"))
	if limit, ok := lockedLimit(); ok && bound {
		m.limit = limit
	}
	for line := range strings.Lines(read("/proc/self/cgroup")) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			dir := filepath.Join("/sys/fs/cgroup", strings.TrimSpace(path))
			m.group = bytesIn(read(dir, "memory.max"), noLimit)
			m.charged = bytesIn(read(dir, "memory.current"), 0)
		}
	}
	return m
}

// lockedIn is what a process's status says: the bytes that devices have of it, and
// whether the limit of locked memory holds for it, as it does without CAP_IPC_LOCK.
func lockedIn(status string) (bytes uint64, bound bool) {
	bound = true
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch name {
		case "VmPin":
			bytes = bytesIn(strings.TrimSuffix(value, " kB"), 0) << 10
		case "CapEff":
			caps, err := strconv.ParseUint(value, 16, 64)
			bound = err != nil || caps>>unix.CAP_IPC_LOCK&1 == 0
		}
	}
	return bytes, bound
}

// bytesIn is the number in a file; without one, as in "max", what it is then.
func bytesIn(text string, otherwise uint64) uint64 {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return otherwise
	}
	return n
}

// gidKind reads from the kernel what the library of rdma-core 28 and older does not
// tell: the kind of a GID and its interface.
func gidKind(name string, port, index int) (GIDKind, string) {
	dir := filepath.Join(sysfs, name, "ports", strconv.Itoa(port), "gid_attrs")
	read := func(what string) string {
		b, err := os.ReadFile(filepath.Join(dir, what, strconv.Itoa(index)))
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	kind := GIDUnknown
	switch read("types") {
	case "RoCE v2":
		kind = GIDRoCEv2
	case "IB/RoCE v1":
		kind = GIDRoCEv1
	}
	return kind, read("ndevs")
}

// duplicate makes another number for an open file, which programs that are started
// do not get.
func duplicate(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0) }
