package front

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestRunning: from a prompt's last byte to the end of its answer, whatever has come of
// that; what is no request for a prompt is not counted.
func TestRunning(t *testing.T) {
	answer := make(chan struct{})
	h := build(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		io.WriteString(w, "first, ")
		http.NewResponseController(w).Flush()
		<-answer
		io.WriteString(w, "last")
	}), Options{Planner: always(coldPlan())})
	for path, want := range map[string]int{"/v1/embeddings": 0, "/v1/chat/completions": 1} {
		r, err := h.client.Post(h.url+path, "application/json", strings.NewReader(chat(false)))
		if err != nil {
			t.Fatal(err)
		}
		if n := h.front.Running(); n != want {
			t.Errorf("%s: %d while the answer comes, want %d", path, n, want)
		}
		answer <- struct{}{}
		if b, err := io.ReadAll(r.Body); err != nil || string(b) != "first, last" {
			t.Errorf("%q, %v", b, err)
		}
		r.Body.Close()
		waitFor(t, func() bool { return h.front.Running() == 0 })
	}
}
