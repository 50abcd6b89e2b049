//go:build rdmavm || verbsabi

package verbs

import "testing"

// must returns v or ends the test.
func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// second is the error of a call.
func second[T any](_ T, err error) error { return err }
