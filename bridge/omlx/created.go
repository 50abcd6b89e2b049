package omlx

import (
	"strconv"
	"strings"
	"time"
)

// CreatedAt returns t as the decoder writes it into created_at: the text of a
// Python float of seconds since 1970.
func CreatedAt(t time.Time) string {
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
