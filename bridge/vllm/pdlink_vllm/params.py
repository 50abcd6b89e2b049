"""Numbers that were chosen, in one place, each with its reason."""

from __future__ import annotations

# Longest that one request may make the engine wait, all steps together, in seconds, unless the settings say otherwise.
# The sidecar answers BEGIN within 2 s at the latest, and a slot comes back in milliseconds on a healthy link: who needs
# more has a link that cannot carry the transfer.
WAIT_BUDGET = 3.0

# Longest single wait for a slot, in seconds, where the sidecar names no shorter one. Several in a row fit into the
# budget.
LEASE_WAIT = 1.0

# Longest wait for an answer while a connection is made, in seconds. The keeper's thread waits, never the engine's.
HELLO_WAIT = 2.0

# Pause between two attempts to reach the sidecar, in seconds: the protocol asks for at least one every 0.5 s.
RECONNECT_PAUSE = 0.4

# Slots that a request asks for ahead of its need: one is being filled, one is on its way, two cover the answer's delay.
LEASES_AHEAD = 4

# Seconds that an ended request is remembered. A sidecar that is restarted meanwhile is told again what it may have
# missed.
END_MEMORY = 10.0

# A piece that would leave less than this share of a slot is cut rather than moved to the next slot: slots stay full,
# and a piece's 32 bytes of list are paid for by at least 64 KB of a full-size slot.
MIN_CUT_SHARE = 64

# Layouts of blocks that are remembered: a sidecar of one model has one or two, and an array's place is 64 bytes.
LAYOUTS = 8

# Longest that END waits for copies of a device, in seconds; a device that needs longer is broken or busy with other
# work.
DEVICE_WAIT = 10.0

# Longest that the end of the engine waits for the thread that hands slots over, in seconds: it may be in the middle of
# a copy, which takes milliseconds, and vLLM kills workers that take long to end.
CLOSE_WAIT = 5.0

# Longest packet that is read, in bytes, where the protocol knows those of 64: a longer one is noticed, not cut to fit.
PACKET_READ = 128

# Prompts that are projected on the engine's GPU at once: 7 MB of carries each for DeepSeek-V4-Flash. Rows of more go
# to the sidecar.
PROJECTED_REQUESTS = 8

# Longest run of rows that one call of the projection takes; a step with more makes several. Longer ones gain nothing.
PROJECTED_TOKENS = 16384

# Bytes of the weight file that are hashed at once: large enough for the hash to be all that it costs, small beside what
# a host has.
HASH_CHUNK = 16 << 20

# Largest file of exported weights that a worker reads, in bytes: all of it lies in memory while it is uploaded.
# DeepSeek-V4-Flash's has 0.8 GB; what has ten times that is another file.
MAX_WEIGHTS = 8 << 30

# Largest header of a safetensors file that is read, in bytes: that of a checkpoint's shard has some hundred kilobytes,
# and a claim beyond this is not a header.
MAX_HEADER = 64 << 20

# Callers that are looked at for the one that has the model, the innermost first: the runner is a handful of calls up, a
# connector that holds others adds two, and the worker, which has it too, is not far beyond.
CALLERS = 16

# Letters of a reason why a fact is missing: a line in a log, and all of them fit into the document.
REASON = 200

# Tokens of the decoder's blocks until a transfer says otherwise: oMLX's for models of this size.
BLOCK_TOKENS = 2048

# More tokens than any prompt has blocks for: up to the end, wherever that is.
ENDLESS = 1 << 40

# Limits of the engine socket (section 7 of its specification).
MAX_ENTRIES = 126
MIN_SLOT, MAX_SLOT = 8 << 10, 4 << 20
MAX_RING = 512 << 20
MAX_ARRAYS = 16384
MAX_BLOCKS = 1 << 14
MAX_FACTS = 32 << 10
