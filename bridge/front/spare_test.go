package front

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"
)

// TestSpareSizes: a buffer is as large as asked, at most a quarter larger beyond the first
// one, and its class is that of its size alone.
func TestSpareSizes(t *testing.T) {
	of := map[int]int{} // sizes, by class
	for n := 1; n < 70<<20; n += 1 + n/1000 {
		size, class := spareSize(n)
		if size < n || n > firstBody+1 && size > n+n/4 || class >= spareClasses || class < 0 && size != n {
			t.Fatalf("%d: %d of class %d", n, size, class)
		}
		if class < 0 {
			continue
		}
		if was, ok := of[class]; ok && was != size {
			t.Fatalf("class %d is of %d and of %d", class, was, size)
		}
		of[class] = size
		if again, same := spareSize(size); again != size || same != class {
			t.Fatalf("%d of class %d is %d of class %d", size, class, again, same)
		}
	}
	if len(of) != spareClasses || of[spareClasses-1] != 8<<20 {
		t.Errorf("%d classes to %d, want %d to 8 MiB", len(of), of[spareClasses-1], spareClasses)
	}
	var s spare
	s.put(nil)
	for _, size := range []int{10, firstBody + 1, 5 << 14, 5<<14 + 1, 9 << 20} {
		b := s.get(size)
		if s.put(b); len(b.b) != size {
			t.Errorf("%d bytes, want %d", len(b.b), size)
		}
	}
}

// TestBodiesAreTheirOwn: many bodies of all lengths, one after the other and at a time,
// come whole to the planner and to the decoder.
func TestBodiesAreTheirOwn(t *testing.T) {
	sum := func(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }
	planner := &script{plan: func(a Ask) (Plan, error) {
		if sum(a.Body) != a.Header.Get("X-Sum") {
			t.Error("the planner has another body")
		}
		return Plan{}, ErrUnplannable
	}}
	decoder := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil || sum(b) != r.Header.Get("X-Sum") {
			t.Errorf("the decoder has another body: %d bytes, %v", len(b), err)
		}
		io.WriteString(w, "{}")
	})
	h := build(t, decoder, Options{Planner: planner, Engines: []Engine{quick("a")}, waits: waits{room: time.Hour}})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i))) //nolint:gosec // bodies
			for range 20 {
				body := bytes.Repeat([]byte{byte('a' + i)}, 1<<(6+random.IntN(15))+random.IntN(100))
				var from io.Reader = bytes.NewReader(body)
				if random.IntN(2) == 0 {
					from = io.MultiReader(from) // of a length that is not said
				}
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, h.url+"/v1/completions", from)
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("X-Sum", sum(body))
				resp, err := h.client.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
	wg.Wait()
	waitFor(t, func() bool { return h.front.room.TryAcquire(h.front.o.MaxBodies) })
}
