package main

import (
	"os"
	"strconv"
	"strings"
)

// readCalls is how many read and write system calls this process made so far, those of
// a vector too; receiving with flags is not counted by the kernel.
func readCalls() (reads, writes int64) {
	text, err := os.ReadFile("/proc/self/io")
	if err != nil {
		return 0, 0
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		n, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		if err != nil {
			continue
		}
		switch name {
		case "syscr":
			reads = n
		case "syscw":
			writes = n
		}
	}
	return reads, writes
}
