//go:build !linux

package prefill

import (
	"errors"
	"path/filepath"
	"testing"
)

func TestUnavailable(t *testing.T) {
	s, err := Listen(t.Context(), Options{Socket: filepath.Join(t.TempDir(), "engine.sock")})
	if s != nil || !errors.Is(err, ErrUnavailable) {
		t.Errorf("%v, %v", s, err)
	}
}
