package codec

import (
	"sync"
	"time"
)

// Meter adds up what the governors of a process find on the wire, for connections that
// may share a link. The zero value is ready. It may be used concurrently. It holds on to
// a Governor that has measured something until Governor.Close at the latest.
type Meter struct {
	mu   sync.Mutex
	said map[*Governor]measured // guarded by mu
}

// measured is bytes a second, and for how long they count.
type measured struct {
	rate  float64
	until time.Time
}

// unknown is the rate of a governor that has just begun to measure.
const unknown = -1

// drop forgets g, and what it measured. A nil Meter has nothing to forget.
func (m *Meter) drop(g *Governor) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.said, g)
}

// add says what g measured and how long that counts, in place of what it said before,
// and returns the sum of all that counts; not sure: somebody's is unknown. On a nil
// Meter the sum is g's.
func (m *Meter) add(g *Governor, rate float64, now, until time.Time) (sum float64, sure bool) {
	if m == nil {
		return rate, true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.said == nil {
		m.said = make(map[*Governor]measured)
	}
	m.said[g] = measured{rate, until}
	sure = true
	for g, s := range m.said {
		switch {
		case s.until.Before(now):
			delete(m.said, g)
		case s.rate == unknown:
			sure = false
		default:
			sum += s.rate
		}
	}
	return sum, sure
}
