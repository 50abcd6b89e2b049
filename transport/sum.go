package transport

import (
	"fmt"
	"hash/crc32"
	"slices"
	"time"

	"github.com/zeebo/xxh3"
)

// The algorithms of this build.
const (
	sumXXH3  = "xxh3-64"
	sumCRC   = "crc32c"
	sumProbe = 64 << 10 // bytes summed at a time to measure: a piece of usual size, in the cache as a received one is
)

// Bounds of one measurement. Another process may take the core at any time, so
// the best of several rounds counts.
const (
	sumRounds    = 8                    // enough that one of them is not disturbed, 0.1 ms where both are fast
	sumMinRounds = 2                    // the first fills caches
	sumBudget    = 2 * time.Millisecond // where both are slow
)

// sumMargin is how much faster a shorter sum must be to come first: 64 bits miss
// a fault four billion times less often than 32 and cost no more on the wire.
const sumMargin = 1.25

// SumNone is the name of the checksum that checks nothing. It is for measuring
// only.
const SumNone = "none"

// Sums are the names of the checksum algorithms of this build, those that catch
// most first. They catch faults, not attackers.
func Sums() []string { return []string{sumXXH3, sumCRC, SumNone} }

// SumFunc returns the checksum of p.
type SumFunc func(p []byte) uint64

// SumByName returns an algorithm of Sums. "none" returns 0 for everything and
// is for measuring only.
func SumByName(name string) (SumFunc, error) {
	switch name {
	case sumXXH3:
		return xxh3.Hash, nil
	case sumCRC:
		table := crc32.MakeTable(crc32.Castagnoli)
		return func(p []byte) uint64 { return uint64(crc32.Checksum(p, table)) }, nil
	case SumNone:
		return func([]byte) uint64 { return 0 }, nil
	}
	return nil, fmt.Errorf("transport: unknown checksum %q, this build has %v", name, Sums())
}

// SumRate is how fast an algorithm of Sums is on one core of this machine.
type SumRate struct {
	Name           string
	BytesPerSecond float64
}

// MeasureSums times the algorithms of Sums that check something and returns
// them best first: by rate, but a shorter sum has to be clearly faster than a
// longer one. It takes about a millisecond. Which is faster depends on the
// machine: xxh3 is assembly on amd64 only, crc32c is an instruction on arm64.
func MeasureSums() []SumRate {
	names := slices.DeleteFunc(Sums(), func(s string) bool { return s == SumNone })
	sums := make([]SumFunc, len(names))
	rates := make([]SumRate, len(names))
	for i, name := range names {
		sum, err := SumByName(name)
		if err != nil {
			panic("transport: " + err.Error()) // Sums lists what SumByName has
		}
		sums[i], rates[i].Name = sum, name
	}
	buf := make([]byte, sumProbe)
	for i := range buf {
		buf[i] = byte(i * i >> 3)
	}
	begin := time.Now()
	for round := range sumRounds {
		for i, sum := range sums {
			start := time.Now()
			sum(buf)
			// A clock too coarse to see it calls it fast: no worse than no choice.
			took := max(time.Since(start), time.Nanosecond)
			rates[i].BytesPerSecond = max(rates[i].BytesPerSecond, sumProbe/took.Seconds())
		}
		if round+1 >= sumMinRounds && time.Since(begin) > sumBudget {
			break
		}
	}
	return rankSums(rates)
}

// rankSums sorts rates, which are in the order of Sums, best first.
func rankSums(rates []SumRate) []SumRate {
	handicap := func(r SumRate) float64 {
		if r.Name == sumCRC {
			return r.BytesPerSecond / sumMargin
		}
		return r.BytesPerSecond
	}
	slices.SortStableFunc(rates, func(a, b SumRate) int {
		switch x, y := handicap(a), handicap(b); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	return rates
}

// SumsByRate returns the names of MeasureSums, for a link to offer to its peers.
// A link calls it once, not for every connection.
func SumsByRate() []string {
	rates := MeasureSums()
	names := make([]string, len(rates))
	for i, r := range rates {
		names[i] = r.Name
	}
	return names
}
