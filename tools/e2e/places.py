"""Where things are in this repository."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTDECODER = ROOT / "bridge" / "omlx" / "testdecoder"
TESTWRITER = ROOT / "bridge" / "omlx" / "testdata" / "py"
CONNECTOR = ROOT / "bridge" / "vllm"
SHIM = CONNECTOR / "tests" / "engine" / "shim"
