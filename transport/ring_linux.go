package transport

import "syscall"

// preferHugePages asks for huge pages, which make the first touch of a ring and
// every copy from and to it cheaper: rings are copied through from end to end.
// Where they are switched off or not to be had, nothing changes.
func preferHugePages(mem []byte) {
	if len(mem) >= hugePage {
		syscall.Madvise(mem, syscall.MADV_HUGEPAGE) //nolint:errcheck // advice that may be declined
	}
}
