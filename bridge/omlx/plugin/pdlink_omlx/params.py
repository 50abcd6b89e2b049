"""Tuned numbers and limits, each with its reason."""

# A body that is planned: a million tokens of text are about 5 MB, of JSON with escapes twice that.
MAX_BODY = 64 << 20

# A body of adopt or evict: as many hashes as a call may have are 1.1 MB, and a model's id is short.
MAX_CALL = 2 << 20

# Hashes of one call: the longest plan that the receiver takes.
MAX_HASHES = 1 << 14

# A block file's header: real ones have 65 KB.
MAX_HEADER = 4 << 20

# Axes of a tensor: real ones have four, and the product of very many takes hours.
MAX_AXES = 8

# Characters of why a file is refused: its names and texts are part of it, and a header may be one name.
MAX_REASON = 300

# Values looked at in each tensor of a block: windows at its begin, middle and end. A stale or half-written page shows
# itself there; single bits are what the checksums on the way are for.
SAMPLE_WINDOWS = 3
SAMPLE_VALUES = 512

# Blocks indexed in one turn of the decoder's executor: each takes about a millisecond, and decoding waits meanwhile.
EXECUTOR_BATCH = 8

# Seconds that a plan waits for the adoption of blocks that lie in the store and are not indexed: the executor may be in
# the middle of a prefill chunk, and then the blocks are adopted after the transfer.
PLAN_ADOPT_WAIT = 2.0

# Seconds that a plan's space stays reserved when no adoption comes: a long prefill takes minutes.
RESERVATION_SECONDS = 300.0

# Seconds that a tail's rows stay in memory behind its adoption or use: the request follows at once, and with it those
# that waited for the same blocks.
TAIL_SECONDS = 60.0

# Tails that are remembered; rows of one are at most a block's, tens of megabytes.
MAX_TAILS = 8

# Seconds before a canary that failed is tried again: want of memory passes.
CANARY_RETRY = 60.0

# Seconds between looks for models that were loaded since, so that their canary is made before a request needs it. The
# first call of an endpoint begins it.
WATCH_SECONDS = 2.0

# Room of the canary's scratch store; one block is at most tens of megabytes.
SCRATCH_BYTES = 4 << 30

# Token ids of the canary stay below this: every vocabulary has them.
CANARY_VOCABULARY = 61

# What is read of the file that has the day's writes: a date and a number.
MAX_WRITES_FILE = 4 << 10

# Hashes remembered as ours, for evict; the oldest go first. 32 bytes each.
MAX_OURS = 200_000

# Settings, read from the environment because an import hook has no command line.
ENV_DISABLE = "PDLINK_OMLX_DISABLE"
ENV_DAILY = "PDLINK_OMLX_DAILY_BYTES"

# Ways of quantising whose values bf16 holds exactly: small floats times powers of two, or times e4m3. Affine ones are
# rounded by whoever exports them, so their hashes say nothing.
EXACT_MODES = ("mxfp8", "mxfp4", "nvfp4")
