package transport

import (
	"fmt"
	"hash/crc32"

	"github.com/zeebo/xxh3"
)

// Sums are the names of the checksum algorithms of this build, best first.
// They catch faults, not attackers.
func Sums() []string { return []string{"xxh3-64", "crc32c", "none"} }

// SumFunc returns the checksum of p.
type SumFunc func(p []byte) uint64

// SumByName returns an algorithm of Sums. "none" returns 0 for everything and
// is for measuring only.
func SumByName(name string) (SumFunc, error) {
	switch name {
	case "xxh3-64":
		return xxh3.Hash, nil
	case "crc32c":
		table := crc32.MakeTable(crc32.Castagnoli)
		return func(p []byte) uint64 { return uint64(crc32.Checksum(p, table)) }, nil
	case "none":
		return func([]byte) uint64 { return 0 }, nil
	}
	return nil, fmt.Errorf("transport: unknown checksum %q, this build has %v", name, Sums())
}
