package failover

import "time"

// DeadlineFor is how long to wait for something that moves so many bytes at a
// rate that was measured before (bytes a second; 0 or less: nothing was): half a
// minute, and four times what the bytes take at that rate. It is at most a day.
func DeadlineFor(bytes uint64, rate float64) time.Duration {
	if !(rate >= slowest) { // not a number, too
		rate = slowest
	}
	took := float64(bytes) / rate * graceFactor
	if took >= longest.Seconds() {
		return longest
	}
	return min(longest, graceFixed+time.Duration(took*float64(time.Second)))
}
