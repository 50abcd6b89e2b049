package flow

import (
	"net/netip"
	"sync"
	"time"
)

// Backlog is how often the bytes of a connection waited for their reader: nearly
// always where the reading end is the slow one, seldom where it is any other.
type Backlog struct {
	Samples int `json:"samples"`
	Waiting int `json:"waiting"` // of Samples: there were enough bytes to wake the reader
}

// Sampler looks at sockets now and then until it is stopped.
type Sampler struct {
	quit chan struct{}
	done sync.WaitGroup
	seen map[netip.AddrPort]Backlog // by the other end
}

// SampleEvery is how often Sample looks by default: often enough for a second to say
// something, at less than a thousandth of a core.
const SampleEvery = 5 * time.Millisecond

// Sample begins to look at the sockets of this process that match says yes to, every
// so often; zero or less means SampleEvery. Where a system does not tell, there are no
// samples.
func Sample(every time.Duration, match func(local, remote netip.AddrPort) bool) *Sampler {
	if every <= 0 {
		every = SampleEvery
	}
	s := &Sampler{quit: make(chan struct{}), seen: make(map[netip.AddrPort]Backlog)}
	s.done.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		var p poller
		for {
			select {
			case <-tick.C:
			case <-s.quit:
				return
			}
			p.look(match, func(remote netip.AddrPort, waiting bool) {
				b := s.seen[remote]
				b.Samples++
				if waiting {
					b.Waiting++
				}
				s.seen[remote] = b
			})
		}
	})
	return s
}

// Stop ends it and returns what it has seen of the socket whose bytes waited most: a
// connection has sockets with little to do too. It is called once.
func (s *Sampler) Stop() (most Backlog) {
	close(s.quit)
	s.done.Wait()
	for _, b := range s.seen {
		if b.Waiting > most.Waiting || b.Waiting == most.Waiting && b.Samples > most.Samples {
			most = b
		}
	}
	return most
}
