package kernels

// Tuned numbers, measured with BenchmarkDSV4Layer.
const (
	// tileRows and tileCols shape the inner product loop: 3×2 accumulators, two
	// operands and six products are the most that the compiler keeps in 15
	// floating-point registers. 4×2 spills an accumulator and runs at less than half
	// the speed; 2×2 does not hide the latency of an addition.
	tileRows = 3
	tileCols = 2
	// segmentRows is how many tokens share one unpacking of the weights: enough to
	// make the unpacking (one conversion per 96 products) vanish, few enough that
	// the unpacked rows of a real layer (96 × 4096 × 8 bytes) stay in the cache.
	// It is a multiple of tileRows.
	segmentRows = 96
	// weightReadBytes is the buffer through which weights are read: large enough for
	// full disk speed, small beside the 8 MB of one matrix.
	weightReadBytes = 1 << 20
	// gatherTileTokens is how many tokens are moved head by head before the next
	// ones: the tile of a usual model (16 × 8 heads × 256 bytes) fits the first-level cache, so
	// the source is read once and every destination run is long.
	gatherTileTokens = 16
)

// Bounds on what a configuration may say. They are far above every published
// model and keep all derived sizes inside int and every position exact in float32.
const (
	maxLayers    = 4096
	maxHidden    = 1 << 17
	maxHeadDim   = 1 << 13
	maxWindow    = 1 << 14
	maxPositions = 1 << 24
	maxBlock     = 1 << 20
	maxWorkers   = 1024
)
