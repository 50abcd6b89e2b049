package front

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

// TestFirstByteIsToldOnce: and of an answer without a body not at all.
func TestFirstByteIsToldOnce(t *testing.T) {
	for body, want := range map[string]int{"": 0, "x": 1, "several bytes": 1} {
		told, at := 0, -1
		w := &watcher{body: io.NopCloser(iotest.OneByteReader(strings.NewReader(body))), done: func(*int, error) {}}
		read := 0
		w.first = func() { told, at = told+1, read }
		for b := make([]byte, 8); ; read++ {
			if _, err := w.Read(b); err != nil {
				break
			}
		}
		if told != want || want > 0 && at != 0 || read != len(body) {
			t.Errorf("%q: told %d times, after %d reads", body, told, at)
		}
	}
}
