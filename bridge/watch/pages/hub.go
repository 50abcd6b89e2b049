package pages

import (
	"encoding/json"
	"sync"
	"time"

	"pdlink/bridge/watch"
)

// shownState is what a page is told.
type shownState struct {
	*watch.State
	Ready bool     `json:"ready"`
	Lacks []string `json:"lacks"` // why not
}

// hub gives states to the pages that are open. While there are none it has no goroutine.
// It may be used concurrently.
type hub struct {
	look  func() shownState
	every time.Duration
	wg    sync.WaitGroup
	over  chan struct{} // closed by close

	mu      sync.Mutex // guards the fields below
	clients map[chan []byte]struct{}
	running bool
	last    []byte // that clients were told, while it is running
	closed  bool
}

func newHub(look func() shownState, every time.Duration) *hub {
	return &hub{look: look, every: every, over: make(chan struct{}), clients: make(map[chan []byte]struct{})}
}

// join returns a channel of encoded states, of which it has the newest that was not taken,
// and what ends that; nil when there are enough clients, or the hub is closed.
func (h *hub) join() (states <-chan []byte, leave func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || len(h.clients) >= maxClients {
		return nil, nil
	}
	c := make(chan []byte, 1)
	h.clients[c] = struct{}{}
	if !h.running {
		h.running = true
		h.wg.Go(h.run)
	} else if h.last != nil {
		c <- h.last // the next one may be a moment away
	}
	return c, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.clients, c)
	}
}

// run tells the clients until there are none.
func (h *hub) run() {
	t := time.NewTicker(h.every)
	defer t.Stop()
	var before *watch.State
	for {
		s := h.look()
		if before != nil {
			s.Rates(before)
		}
		before = s.State
		b, err := json.Marshal(s)
		if err != nil { // no field of it can fail but a rate that is no number
			b = []byte("{}")
		}
		if !h.tell(b) {
			return
		}
		select {
		case <-t.C:
		case <-h.over:
		}
	}
}

// tell gives every client the newest state; false when there is nobody left.
func (h *hub) tell(b []byte) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || len(h.clients) == 0 {
		h.running, h.last = false, nil
		return false
	}
	h.last = b
	for c := range h.clients {
		select { // what it has not read is old
		case <-c:
		default:
		}
		c <- b // only this goroutine fills it
	}
	return true
}

// close ends what clients wait for, and waits for the goroutine.
func (h *hub) close() {
	h.mu.Lock()
	if !h.closed {
		h.closed = true
		close(h.over)
	}
	h.mu.Unlock()
	h.wg.Wait()
}
