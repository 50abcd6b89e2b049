package prefill

import (
	"fmt"
	"os"
)

// allowed reports whether a user's workers are accepted.
func (s *Server) allowed(uid uint32) bool {
	if uid == uint32(os.Getuid()) {
		return true
	}
	for _, u := range s.o.UIDs {
		if u == uid {
			return true
		}
	}
	return false
}

// deny refuses a user's worker. Where any user can connect, one may do so all the time:
// few are heard out, none takes a worker's place, and it is said once in a row.
func (w *worker) deny() error {
	s := w.s
	s.mu.Lock()
	told := s.denied == w.peer.uid
	s.denied = w.peer.uid
	full := s.strangers >= maxStrangers
	if !full {
		s.strangers++
	}
	s.mu.Unlock()
	if !full {
		w.refuse(codeDenied, fmt.Sprintf("user %d is not accepted", w.peer.uid))
		s.mu.Lock()
		s.strangers--
		s.mu.Unlock()
	}
	if told {
		return nil
	}
	return fmt.Errorf("user %d is not accepted: run the engine as this user, or accept that one", w.peer.uid)
}
