//go:build linux || darwin

package main

import (
	"fmt"
	"io/fs"
	"syscall"
)

// ownerOf is the user whose file it is.
func ownerOf(info fs.FileInfo) (uid int, ok bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(st.Uid), true
}

// sameDevice reports whether two files are on one file system.
func sameDevice(a, b fs.FileInfo) bool {
	x, okA := a.Sys().(*syscall.Stat_t)
	y, okB := b.Sys().(*syscall.Stat_t)
	return !okA || !okB || x.Dev == y.Dev
}

// freeSpace is what this user can still write to a directory's file system, and its
// size, in bytes.
func freeSpace(dir string) (free, total uint64, ok bool) {
	var st syscall.Statfs_t
	if syscall.Statfs(dir, &st) != nil {
		return 0, 0, false
	}
	unit := uint64(st.Bsize)
	return st.Bavail * unit, st.Blocks * unit, true
}

// fewFiles is how many open files are few: a connection of many lanes, the clients of
// a front door and their answers, and a block that is written for each transfer.
const fewFiles = 1024

// fileLimits looks at how many files the process may have open.
func fileLimits() []finding {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return nil
	}
	if most := l.Max; most < fewFiles {
		return []finding{doubt(fmt.Sprintf("%d open files at most", most), "raise the hard limit: LimitNOFILE=4096 of systemd, which the file of `pdlink service print` has, or as root `ulimit -n 4096` before the program is started")}
	}
	return []finding{good("enough open files are allowed")}
}
