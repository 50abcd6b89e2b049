//go:build !nordma && (linux || darwin) && (amd64 || arm64)

package verbs

const (
	// pollBatch is how many completions one call into the library takes at most: with 16
	// its cost is some ns each, and more seldom come together.
	pollBatch = 32

	// chainMax is how many work requests one call into the library posts at most. From 16
	// on a call costs some 40 ns each; longer lists go as several chains.
	chainMax = 64

	// mostGIDs is how many entries of one port's table are asked for one by one: real
	// tables have at most 256. mostListed is how many of a device are listed in one call.
	mostGIDs   = 1 << 10
	mostListed = 1 << 12
)
