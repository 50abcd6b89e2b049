package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// size is a flag's number of bytes: "4096", "16MiB", "1.5GB".
type size int64

// sizeUnits are what may follow the number, longest first where one ends
// another.
func sizeUnits() []struct {
	name  string
	bytes float64
} {
	return []struct {
		name  string
		bytes float64
	}{
		{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
		{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1},
	}
}

// parseSize reads a number of bytes, not negative.
func parseSize(s string) (int64, error) {
	digits, factor := strings.TrimSpace(s), 1.0
	for _, u := range sizeUnits() {
		if rest, ok := strings.CutSuffix(digits, u.name); ok {
			digits, factor = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	v, err := strconv.ParseFloat(digits, 64)
	v *= factor
	if err != nil || !(v >= 0 && v < 1<<53) || v != math.Trunc(v) {
		return 0, fmt.Errorf("size %q: want whole bytes, for example 4096, 16MiB or 20MB", s)
	}
	return int64(v), nil
}

// String implements pflag.Value.
func (z *size) String() string { return sizeText(int64(*z)) }

// Set implements pflag.Value.
func (z *size) Set(s string) error {
	v, err := parseSize(s)
	if err == nil {
		*z = size(v)
	}
	return err
}

// Type implements pflag.Value.
func (z *size) Type() string { return "size" }

// sizeText is a size for people, exact, as parseSize reads it.
func sizeText(n int64) string {
	for _, u := range []struct {
		name  string
		bytes int64
	}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"MB", 1e6}, {"kB", 1e3}} {
		if n >= u.bytes && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.name
		}
	}
	return strconv.FormatInt(n, 10)
}
