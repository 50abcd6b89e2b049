package front

import (
	"io"
	"strings"
	"testing"
)

func TestWatcher(t *testing.T) {
	pad := strings.Repeat("y", 3*tailKept)
	for name, c := range map[string]struct {
		body string
		want int // -1: unknown
	}{
		"nothing":         {"{}", -1},
		"null":            {`{"usage":{"prompt_tokens_details":{"cached_tokens":null}}}`, -1},
		"text that looks": {`{"text":"\"cached_tokens\": 5"}`, -1},
		"at the end":      {pad + `{"cached_tokens" : 12}`, 12},
		"at the start":    {`{"message":{"usage":{"cache_read_input_tokens":33}}}` + pad, 33},
		"last counts":     {`{"cached_tokens":1},{"cached_tokens":2}`, 2},
		"null at last":    {`{"cached_tokens":3},{"cached_tokens":null}`, 3},
		"spaces":          {"{\"cached_tokens\"\n:\t 4 }", 4},
		"another name":    {`{"cached_tokens":6,"uncached_tokens":9,"input_tokens":8}`, 6},
		"no number":       {`{"cached_tokens":"7"},{"cached_tokens" 8},{"cached_tokens":-1}`, -1},
		"cut short":       {`{"cached_tokens":`, -1},
		"in the middle":   {pad + `{"cached_tokens":1}` + pad, -1},
	} {
		for _, step := range []int{1, 1000, 1 << 20} {
			got := -2
			w := &watcher{body: io.NopCloser(strings.NewReader(c.body)), done: func(n *int, _ error) {
				if got = -1; n != nil {
					got = *n
				}
			}}
			buf := make([]byte, step)
			for {
				if _, err := w.Read(buf); err != nil {
					break
				}
			}
			if err := w.Close(); err != nil || got != c.want {
				t.Errorf("%s in steps of %d: %d, want %d", name, step, got, c.want)
			}
		}
	}
}
