"""The connector, which notes when it commits: a module for kv_connector_module_path.

PDLINK_COST_LOG names a file that gets a line for each commit: seconds since the epoch.
"""

from __future__ import annotations

import os
import time
from typing import Any

from pdlink_vllm.connector import PDLinkConnector
from pdlink_vllm.link import Link

__all__ = ["PDLinkConnector"]

_commit = Link.commit
_log = os.open(os.environ["PDLINK_COST_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _noting(self: Link, *args: Any, **kwargs: Any) -> None:
    """Commit, and note when."""
    _commit(self, *args, **kwargs)
    os.write(_log, b"%.6f\n" % time.time())


Link.commit = _noting  # type: ignore[method-assign]
