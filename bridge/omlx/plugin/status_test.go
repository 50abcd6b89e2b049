package plugin

import (
	"path/filepath"
	"testing"
)

// TestStatus: what a decoder does before it can plan.
func TestStatus(t *testing.T) {
	for name, want := range map[string]string{
		"starting.json": "model tiny is being loaded", "info.json": "",
		filepath.Join("omlx-0.5.3", "info.json"): "", filepath.Join("flyto-mlx-0.7.0", "info.json"): "",
	} {
		s, err := ParseStatus(example(t, name))
		if err != nil || s.Starting != want || (len(s.Loaded()) == 0) != (want != "") {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
}
