"""oMLX's own command line on a CPU: serve_cpu.py serve …, with the decoder's interpreter.

MLX multiplies gathered matrices, which the experts of DeepSeek-V4 are, on a CPU in float32 only; that one function is
widened first (bridge/omlx/testdecoder/decoder.py). No cached value passes through it.
"""

from __future__ import annotations

import sys

from omlx.cli import main

import decoder

if __name__ == "__main__":
    decoder.widen_gather_mm()
    sys.exit(main())
