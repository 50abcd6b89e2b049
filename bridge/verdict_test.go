package bridge

import (
	"encoding/json"
	"testing"
)

// TestLinkUse: what was coded on its way is told, link by link, and nothing where
// nothing was.
func TestLinkUse(t *testing.T) {
	var links []LinkUse
	for _, u := range []LinkUse{
		{Link: "tcp", Bytes: 100}, {Link: "tcp", Bytes: 200, Saved: 100, Codec: "bf16"}, {Link: "tcp", Sealed: true, Bytes: 50, Saved: 25, Codec: "lz4"},
		{Link: "tcp", Bytes: 20}, {Link: "rdma", Bytes: 7},
	} {
		links = addLink(links, u)
	}
	want := `[{"link":"tcp","sealed":false,"bytes":320,"saved":100,"codec":"bf16"},` +
		`{"link":"tcp","sealed":true,"bytes":50,"saved":25,"codec":"lz4"},{"link":"rdma","sealed":false,"bytes":7}]`
	if got, err := json.Marshal(links); err != nil || string(got) != want {
		t.Errorf("%s, %v, want\n%s", got, err, want)
	}
	for i, words := range []string{"bf16 1.45:1", "lz4 2.00:1", ""} {
		if got := links[i].Packed(); got != words {
			t.Errorf("link %d: %q, want %q", i, got, words)
		}
	}
	// A peer may say anything.
	for _, u := range []LinkUse{{Bytes: 5, Saved: 5, Codec: "x"}, {Bytes: 5, Saved: 9, Codec: "x"}, {Bytes: 5, Saved: 1}} {
		if got := u.Packed(); got != "" {
			t.Errorf("%+v: %q", u, got)
		}
	}
	v, err := ParseVerdict([]byte(`{"state":"complete","links":[{"link":"tcp","bytes":9,"saved":3,"codec":"b\u001b[31m"}]}`))
	if err != nil || v.Links[0].Codec != "b?[31m" {
		t.Errorf("%+v, %v", v, err)
	}
}
