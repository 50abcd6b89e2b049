package keys_test

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"pdlink/transport/keys"
)

// The public keys of RFC 8032's first test and of the bytes 0 to 31, in texts
// that Python's base64 and hashlib made.
const (
	rfcHex  = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
	rfcText = "pdlink125njqamcweflpvkl73j4szahhihoc4xt3ktcgjnpaingr5yhkenm2kmnmi"
	seqText = "pdlink1aaaqeayeaudaocajbifqydiob4ibceqtcqkrmfyydenbwha5dypzk6oypq"
)

func parse(tb testing.TB, text string) keys.PublicKey {
	tb.Helper()
	k, err := keys.ParsePublic(text)
	if err != nil {
		tb.Fatal(err)
	}
	return k
}

func TestPublicText(t *testing.T) {
	k := parse(t, rfcText)
	if hex.EncodeToString(k[:]) != rfcHex || k.String() != rfcText {
		t.Errorf("key %x, text %v", k, k)
	}
	if got := parse(t, strings.ToUpper(rfcText)); got != k {
		t.Errorf("upper case: %v", got)
	}
	if s := k.Short(); len(s) != 18 || !strings.HasPrefix(rfcText, s[:15]) {
		t.Errorf("short form %q", s)
	}
	if got := parse(t, seqText); got[0] != 0 || got[31] != 31 {
		t.Errorf("key %x", got)
	}
}

// TestTypos changes each character into every other, swaps and cuts.
func TestTypos(t *testing.T) {
	refused := func(text string) {
		t.Helper()
		if k, err := keys.ParsePublic(text); !errors.Is(err, keys.ErrBadKey) || k != (keys.PublicKey{}) {
			t.Errorf("%q: %v, %v", text, k, err)
		}
	}
	for i := range rfcText {
		for _, c := range "abcdefghijklmnopqrstuvwxyz0123456789-= \n\x00" {
			if byte(c) != rfcText[i] {
				refused(rfcText[:i] + string(c) + rfcText[i+1:])
			}
		}
		if i > 0 && rfcText[i] != rfcText[i-1] {
			refused(rfcText[:i-1] + rfcText[i:i+1] + rfcText[i-1:i] + rfcText[i+1:])
		}
		refused(rfcText[:i])
		refused(rfcText[:i] + rfcText[i+1:])
		refused(rfcText[:i] + rfcText[i:i+1] + rfcText[i:])
	}
}

func TestTypoMessages(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "does not begin with",
		"ssh-ed25519 AAAA":                "does not begin with",
		"-----BEGIN PRIVATE KEY-----":     "key file",
		rfcText[:60]:                      "5 of 65 characters are missing",
		rfcText + "ab":                    "2 characters too many",
		rfcText[:64] + "1":                "a to z and 2 to 7",
		rfcText[:20] + "q" + rfcText[21:]: "checksum",
		strings.Repeat("a", 1000):         "1000 characters",
		(keys.PublicKey{}).String():       "nobody",
	} {
		if _, err := keys.ParsePublic(text); !errors.Is(err, keys.ErrBadKey) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.70q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParsePublic(f *testing.F) {
	for _, s := range []string{"", rfcText, seqText, strings.ToUpper(seqText), rfcText[:64], "pdlink1", "pdlink2" + rfcText[7:]} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		k, err := keys.ParsePublic(s)
		if err == nil && k.String() != strings.ToLower(s) {
			t.Errorf("%q is %v", s, k)
		}
		if err != nil && (!errors.Is(err, keys.ErrBadKey) || k != (keys.PublicKey{})) {
			t.Errorf("%q: %v, %v", s, k, err)
		}
	})
}
