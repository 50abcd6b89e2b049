"""Medians and spreads, printed with the load that the host had."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence


def spread(name: str, values: Sequence[float], unit: str = "ms") -> float:
    """Print the median of what was measured, and how far it was spread; returns the median."""
    found = sorted(values)
    middle = statistics.median(found)
    rounds = f"{len(found)} rounds, load {os.getloadavg()[0]:.1f}"
    print(f"  {name}: {middle:.1f} {unit} ({found[0]:.1f} to {found[-1]:.1f}, {rounds})", flush=True)
    return middle


def high(values: Sequence[float], q: float) -> float:
    """A quantile, upwards."""
    found = sorted(values)
    return found[min(len(found) - 1, int(q * len(found)))]
