"""JSON of strangers: what a client or a file says, with one exception for all that is none."""

from __future__ import annotations

import json
from typing import Any


def parse(text: str | bytes) -> Any:
    """The value of a JSON text. Raises ValueError for any other, NaN and infinities by name included.

    Nesting that is too deep for Python's parser is no JSON here either: no body and no header has any.
    """
    try:
        return json.loads(text, parse_constant=_constant)
    except RecursionError as err:
        raise ValueError("it is nested too deeply") from err


def _constant(name: str) -> Any:
    """Refuse what Python reads and JSON does not have."""
    raise ValueError(f"{name} is no JSON")
