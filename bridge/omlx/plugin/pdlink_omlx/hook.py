"""Import hook: adds the endpoints when a server that is started as always imports `omlx.server`.

A .pth file loads this module at the start of every interpreter of the environment, so it imports next to nothing. It
never breaks what it is in: where the endpoints cannot be added, the decoder runs without them and says so once.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType

TARGET = "omlx.server"


class _Loader(importlib.abc.Loader):
    """The module's own loader, and then the endpoints."""

    def __init__(self, inner: importlib.abc.Loader) -> None:
        self._inner = inner

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        module.__loader__ = self._inner  # as if this had not been here
        if spec is not None:
            spec.loader = self._inner
        self._inner.exec_module(module)
        add_to(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the target by the finders behind it and wraps its loader; everything else is none of its business."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != TARGET:
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else []
        for finder in behind:
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


def add_to(module: ModuleType) -> bool:
    """Add the endpoints to the server's module; False, with a line on standard error, where that fails."""
    try:
        from .install import install

        install(module)
    except Exception as err:
        print(f"pdlink-omlx: no endpoints, the decoder runs without them: {err}", file=sys.stderr)
        return False
    return True


def activate() -> None:
    """Put the hook in place, once; PDLINK_OMLX_DISABLE=1 leaves it out."""
    if os.environ.get("PDLINK_OMLX_DISABLE") or any(isinstance(f, _Finder) for f in sys.meta_path):
        return
    sys.meta_path.insert(0, _Finder())


activate()
