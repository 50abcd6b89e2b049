package omlx

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// CreatedAt returns t as the decoder writes it into created_at: the text of a
// Python float of seconds since 1970. A clock that is far off must not keep blocks
// from being written, and nobody reads the value: a time before 1970 is 0.0, and one
// after 2262, which nanoseconds do not reach, the last that they do.
func CreatedAt(t time.Time) string {
	first, last := time.Unix(0, 0), time.Unix(0, math.MaxInt64)
	switch {
	case t.Before(first):
		t = first
	case t.After(last):
		t = last
	}
	s := strconv.FormatFloat(float64(t.UnixNano())/1e9, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// validCreatedAt accepts the decimal text of a finite, non-negative float. No
// reader uses the value; the check keeps other text out of the header.
func validCreatedAt(s string) bool {
	if s == "" || len(s) > 32 || strings.Trim(s, "0123456789.e+-") != "" {
		return false
	}
	v, err := strconv.ParseFloat(s, 64)
	return err == nil && v >= 0
}
