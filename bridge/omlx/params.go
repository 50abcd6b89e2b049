package omlx

// Limits on what a plan, a peer or a file may claim. They are far above every
// model known and low enough that nothing allocated or preallocated because of a
// claim can hurt the host.
const (
	// maxTokens bounds a plan's prompt: sixteen times a 1M-token context.
	maxTokens = 1 << 24
	// maxBlocks bounds a plan's blocks: 4M tokens of plain KV in blocks of 256
	// tokens, the finest grid in use. 32 bytes each keep the hash list at half a
	// megabyte. bridge.MaxBlocks is the same limit: neither package knows the
	// other, and a plan beyond either is refused.
	maxBlocks = 1 << 14
	// maxLayers bounds a model's layers; the deepest in use have about 130.
	maxLayers = 1024
	// maxBlockTokens bounds a block; decoders use 256 to 4,096.
	maxBlockTokens = 1 << 20
	// maxDim bounds a head count or width; the widest in use are below 2,048.
	maxDim = 1 << 16
	// maxBlockBytes bounds one block file: a cumulative block of 80K tokens of
	// DeepSeek-V4-Flash has 0.55 GB, one of 1M tokens 7 GB.
	maxBlockBytes = 16 << 30
	// maxText bounds a model id, an extra key and similar single texts.
	maxText = 4096
	// maxExtra bounds the number of extra hash keys.
	maxExtra = 64
	// maxSpecBytes bounds a layout spec as JSON: 1,024 ratios and some texts.
	maxSpecBytes = 1 << 20
	// maxElements bounds the elements that a block file may claim for one state;
	// the largest known state has six.
	maxElements = 256
	// maxHeaderBytes bounds a block file's header before it is parsed: real ones have
	// 65 KB, and the longest that a spec within these limits can give has 2 MB.
	maxHeaderBytes = 4 << 20
	// maxNesting bounds composite elements inside elements; one level is in use.
	maxNesting = 4
)

// Tuned numbers of the store.
const (
	// writeBackStep is how many bytes of one file gather before the kernel is
	// told to start writing them: copying overlaps write-back, and the sync at the
	// end finds little left to do. Measured on ext4 with four blocks open, layer by
	// layer, the rate as part of one sequential writer's, and the time from the last
	// layer to four blocks durable: 1 MiB 0.72 and 20 ms, 2 MiB 0.71 and 9, 4 MiB
	// 0.92 and 10, 8 MiB 0.79 and 23, none 0.81 and 56. Shorter steps for a block's
	// last bytes gain nothing that can be told from noise.
	//
	// O_DIRECT writes a whole block at once as fast and with less of the processor.
	// But pieces have no alignment, so it needs a copy of every open block beside the
	// ring, and the decoder would read what it adopts from the disk.
	writeBackStep = 4 << 20
	// copyStep is the buffer for composing cumulative pools: large enough that
	// the system call does not count, small against the memory bound.
	copyStep = 1 << 20
	// maxOpenParts bounds the open temporary files of one store. A prompt that is
	// prefilled in one step has all its blocks open at once: 3,907 of plain KV for
	// 1M tokens. Where the process may open fewer files, its limit counts.
	maxOpenParts = 4096
	// maxAdvance bounds the space of one store that is reserved with the first byte
	// of a block. Reserving then shows a full disk at once, lays the file out in one
	// piece and is a tenth faster, but unbounded it would let a sender of a few bytes
	// fill the disk. 256 MB are an engine's chunk of 8,192 tokens of DeepSeek-V4, 80
	// MB, of three transfers.
	maxAdvance = 256 << 20
	// reserveAt is the part of a block's file, as its inverse, that must have come
	// before the space for all of it is reserved beyond maxAdvance, and before the
	// block counts no longer against that: what is reserved stays below four times
	// what came, and a full disk still shows itself with the first layers. Rows that
	// cumulative pools repeat do not come: the space for many of them is found when
	// they are copied.
	reserveAt = 4
	// maxPartNames is how many writers of one block may have a temporary file at
	// the same time before the next is refused.
	maxPartNames = 16
	// maxSpans bounds the separate ranges that the record of one block's bytes
	// holds: 1 MiB a block. Pieces that come in the worst order, every other one
	// first, of a model of 64 layers whose 8 heads send 16 tokens of a block of 256
	// at a time make 8,192.
	maxSpans = 1 << 16

	// readStep is the buffer for checking the values of a block file, as copyStep.
	readStep = 1 << 20
)

// File modes before umask: the umask alone decides who shares a store. With the
// usual 022 other accounts, the decoder's too, can read the blocks; accounts that
// also write into one store need a common group, set-gid directories and 002.
const (
	fileMode = 0o666
	dirMode  = 0o777
)
