package why

// Where a figure begins to count as the cause, each with its reason.
const (
	// saturated is the share of the time that a thread is at work, or ready to be, from
	// which on it cannot do more: wake-ups and the scheduler take the rest.
	saturated = 0.85

	// full is the share of the line's rate that counts as all of it: acknowledgements,
	// retransmits and the rounding of shapers take the rest.
	full = 0.93

	// nearly is the share of it from which on what the network did to the sender counts as
	// its being full: others have a part of it too, and a short run its slow start.
	nearly = 0.85

	// waiting is the share of the time that somebody must have waited for the store, for a
	// slot or for the peer's window to be held up by that more than by all else.
	waiting = 0.5

	// windowed is the share of the time that the sender must have waited for the peer's
	// window where that is smaller than what congestion control allows. The kernel stops
	// its clock with each acknowledgement that lets a segment out, so it shows about half
	// of such a wait.
	windowed = 0.2

	// lossy is the share of segments that were lost from which on they hold a flow up,
	// whatever the path: congestion control halves the window every few thousand segments
	// by itself where a queue is full.
	lossy = 0.002

	// minSamples is how many samples say how often bytes waited: with fewer half of them is
	// an accident.
	minSamples = 20

	// most and least bound what is reckoned with: beyond them a figure is no measurement.
	most, least = 1e15, 1e-9

	// idle is the share of the time that a socket has something to send below which the
	// sending end does not keep the link at work.
	idle = 0.7

	// gap is the share of the time without anything to send that is worth a cause: less of
	// it is between any two blocks.
	gap = 0.1
)
