package bridge_test

import (
	"testing"

	"pdlink/bridge"
)

// FuzzVerdict feeds what a peer may send as a transfer's result.
func FuzzVerdict(f *testing.F) {
	f.Add([]byte(`{"state":"complete","blocks":2,"total":2,"links":[{"link":"tcp","bytes":7}]}`))
	f.Add([]byte(`{"state":"partial","reason":"x","blocks":1,"total":2}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := bridge.ParseVerdict(b)
		if err == nil && v.String() == "" && v.State != "" {
			t.Errorf("%q reads as nothing", b)
		}
	})
}
