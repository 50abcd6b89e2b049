package wire

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Printable makes any text one that messages can carry: at most limit bytes of
// valid UTF-8 without control characters and without characters that change how
// the text around them is shown. Spacing characters become spaces; others that
// are not allowed, and runs of bytes that are no UTF-8, become question marks.
// Encoders apply it to reasons by themselves.
func Printable(s string, limit int) string {
	if len(s) <= limit && isPrintable(s) {
		return s
	}
	var b strings.Builder
	for _, r := range strings.ToValidUTF8(s, "?") {
		switch {
		case r == '\t' || r == '\n' || r == '\r' || r == '\u2028' || r == '\u2029':
			r = ' '
		case !printableRune(r):
			r = '?'
		}
		if b.Len()+utf8.RuneLen(r) > limit {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

// isPrintable is the rule for every text of a message (section 3.1).
func isPrintable(s string) bool {
	if !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if !printableRune(r) {
			return false
		}
	}
	return true
}

// printableRune lists what is not allowed by number, so that both ends agree
// whatever version of Unicode their tables have.
func printableRune(r rune) bool {
	switch {
	case r < 0x20, r >= 0x7f && r < 0xa0: // controls
		return false
	case r == 0x061c, r >= 0x200b && r <= 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2060 && r <= 0x206f, r == 0xfeff:
		return false // line breaks, direction marks and characters without width
	}
	return true
}

// checkText applies the rule and a limit to a text.
func checkText(what, s string, limit int) *fault {
	if len(s) > limit {
		return tooMuch("bytes of "+what, len(s), limit)
	}
	if !isPrintable(s) {
		return wrong(what + " is not printable UTF-8")
	}
	return nil
}

// checkNames applies the rules of a list of checksum or feature names: printable
// ASCII without spaces, not empty.
func checkNames(what string, names []string) *fault {
	if len(names) > MaxNames {
		return tooMuch(what, len(names), MaxNames)
	}
	for _, s := range names {
		if s == "" || len(s) > MaxNameItem {
			return &fault{what: fmt.Sprintf("name of %d bytes among the %s, want 1 to %d", len(s), what, MaxNameItem), large: s != ""}
		}
		for i := range len(s) {
			if s[i] <= ' ' || s[i] > '~' {
				return wrong(fmt.Sprintf("name %q among the %s has other than printable ASCII", s, what))
			}
		}
	}
	return nil
}
