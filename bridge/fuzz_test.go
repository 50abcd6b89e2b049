package bridge

import (
	"strings"
	"testing"
	"unicode"
)

// FuzzVerdict feeds what a peer may send as a transfer's result. What is
// accepted holds together and is fit for a terminal.
func FuzzVerdict(f *testing.F) {
	f.Add([]byte(`{"state":"complete","blocks":2,"total":2,"links":[{"link":"tcp","bytes":7}]}`))
	f.Add([]byte(`{"state":"partial","reason":"x","blocks":1,"total":2}`))
	f.Add([]byte(`{"state":"skipped","ports":[{"port":"\u001bmlx5_0:1","counts":{"\u0007out_of_sequence":18446744073709551615}}]}`))
	f.Add([]byte(`{"state":"partial","reason":"\u001b[2J\u001b]0;x\u0007","blocks":-5}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := ParseVerdict(b)
		if err != nil {
			return
		}
		if v.Blocks < 0 || v.Blocks > v.Total || v.Total > MaxBlocks || v.Present > v.Blocks {
			t.Errorf("%q reads as %+v", b, v)
		}
		text := v.String() + v.Transfer
		for _, l := range v.Links {
			text += l.Link
		}
		for _, p := range v.Ports {
			text += p.String()
		}
		if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q prints as %q", b, text)
		}
	})
}

// FuzzAnswer feeds what a peer may send when it admits a transfer.
func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{"blocks":4,"block_bytes":100,"present":[{"first":1,"count":2}]}`))
	f.Add([]byte(`{"blocks":4,"block_bytes":100,"held":[[0,1,5,6,7],[3,0,100]]}`))
	f.Add([]byte(`{"blocks":4,"block_bytes":100,"held":[[0,99,2]]}`))
	f.Add([]byte(`{"blocks":4,"block_bytes":100,"present":[{"first":4294967295,"count":4294967295}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := parseAnswer(b)
		if err != nil {
			return
		}
		for _, h := range a.Held {
			if c := cover(h.Ranges); c.Bytes() > uint64(a.BlockBytes) || int64(h.Block) >= int64(a.Blocks) {
				t.Errorf("%q reads as %+v", b, a)
			}
		}
		again, err := a.encode(len(b) + 1000)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := parseAnswer(again); err != nil || c.bytes() > a.bytes() {
			t.Errorf("%q, said again as %q: %+v, %v", b, again, c, err)
		}
		for _, s := range a.Present {
			if uint64(s.First)+uint64(s.Count) > uint64(a.Blocks) || a.Blocks > MaxBlocks {
				t.Errorf("%q reads as %+v", b, a)
			}
		}
	})
}
