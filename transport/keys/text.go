package keys

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strings"
)

// PublicKey is the Ed25519 public key of a host. The zero value is nobody's.
type PublicKey [ed25519.PublicKeySize]byte

// The text form: a prefix that names the version, then the key and a checksum in
// base 32. Only letters and digits, so that a double click selects it; no digits
// that look like letters; case does not count.
const (
	textPrefix = "pdlink1"
	sumSize    = 4
	textDigits = ((ed25519.PublicKeySize+sumSize)*8 + 4) / 5
	shortText  = len(textPrefix) + 8
)

// ShellPath returns a path as one word of a POSIX shell's command line, for a
// command that a message tells the user to run.
func ShellPath(path string) string {
	if strings.HasPrefix(path, "-") {
		path = "./" + path // it would be an option
	}
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("/._-+=:,@%", c)
	}
	if path != "" && strings.IndexFunc(path, func(c rune) bool { return !plain(c) }) < 0 {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// digits are RFC 4648's, in lower case.
func digits() *base32.Encoding {
	return base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)
}

// String returns the text form, 65 characters: what users paste.
func (k PublicKey) String() string {
	return textPrefix + digits().EncodeToString(append(k[:], k.sum()...))
}

// Short returns the beginning of the text form, for logs: enough to tell a
// user's keys apart, not to be compared by programs.
func (k PublicKey) Short() string { return k.String()[:shortText] + "..." }

// sum finds a mistyped key: one of 2^32 gets through.
func (k PublicKey) sum() []byte {
	h := sha256.Sum256(append([]byte(textPrefix), k[:]...))
	return h[:sumSize]
}

// ParsePublic reads the text form, in either case, with nothing around it. The
// error Is ErrBadKey and says what is wrong.
func ParsePublic(text string) (PublicKey, error) {
	var k PublicKey
	bad := func(format string, args ...any) (PublicKey, error) {
		return PublicKey{}, fmt.Errorf("%w: %s", ErrBadKey, fmt.Sprintf(format, args...))
	}
	if len(text) > 4*textDigits {
		return bad("%d characters are no public key", len(text))
	}
	lower := strings.ToLower(text)
	rest, ok := strings.CutPrefix(lower, textPrefix)
	switch {
	case strings.HasPrefix(lower, "-----begin"):
		return bad("this is a key file's content, not a public key")
	case !ok:
		return bad("%.20q does not begin with %s", text, textPrefix)
	case len(rest) < textDigits:
		return bad("%d of %d characters are missing", textDigits-len(rest), len(textPrefix)+textDigits)
	case len(rest) > textDigits:
		return bad("%d characters too many", len(rest)-textDigits)
	}
	raw, err := digits().DecodeString(rest)
	if err != nil || len(raw) != len(k)+sumSize { // the decoder passes over line ends
		return bad("it has a character that keys do not have (a to z and 2 to 7)")
	}
	copy(k[:], raw)
	// The last digit has spare bits: a key has one text only.
	if !bytes.Equal(raw[len(k):], k.sum()) || k.String() != lower {
		return bad("it is mistyped: the checksum is wrong")
	}
	if k == (PublicKey{}) {
		return bad("it is nobody's")
	}
	return k, nil
}
