package rdma

// stallLooks is how many looks without progress make a stall.
const stallLooks = int(stallTime / watchEvery)

// stall notices that something makes no progress, by looks at it. It counts looks and
// not time: of a process that stood still, or a host that is busy, one look is late,
// and says nothing of the peer. The caller guards it.
type stall struct {
	seen  uint64 // what was done at the last look
	looks int    // without progress
}

// look takes how much is done now, and whether there is more to come. It reports
// whether nothing has come for too long.
func (s *stall) look(done uint64, more bool) bool {
	if done != s.seen || !more {
		s.seen, s.looks = done, 0
		return false
	}
	s.looks++
	return s.looks >= stallLooks
}
