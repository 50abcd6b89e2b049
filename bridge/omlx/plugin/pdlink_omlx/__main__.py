"""Start a decoder with the endpoints: `python -m pdlink_omlx serve …` instead of `omlx serve …`.

The arguments are the decoder's own. `python -m pdlink_omlx check` says whether the endpoints would work here, and
starts nothing. Nothing is needed but the package on Python's path.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from . import __version__
from .errors import Refusal

APP_BUNDLES = ("/Applications/oMLX.app", str(Path.home() / "Applications" / "oMLX.app"))


def server_module() -> Any:
    """The decoder's server module; a Refusal that says what to do where it cannot be had or added to."""
    if importlib.util.find_spec("omlx") is None:
        for bundle in APP_BUNDLES:
            if Path(bundle).exists():
                raise Refusal(
                    "unsupported",
                    f"oMLX is installed as {bundle}, whose Python cannot be added to: install oMLX with pip or brew, "
                    f"and this package beside it ({sys.executable} has no omlx)",
                )
        raise Refusal("unsupported", f"{sys.executable} has no omlx: run this with the decoder's own Python")
    if importlib.util.find_spec("numpy") is None:
        raise Refusal(
            "unsupported",
            f"{sys.executable} has no numpy, which pdlink-omlx needs: run `{sys.executable} -m pip install numpy`, "
            "or this with the decoder's own Python",
        )
    try:
        return importlib.import_module("omlx.server")
    except ImportError as err:
        raise Refusal("unsupported", f"this omlx has no server that can be imported: {err}") from err


def check() -> int:
    """Print what works with the decoder of this environment, as JSON; 0 when all of it does."""
    out: dict[str, Any] = {"plugin": __version__, "python": sys.version.split()[0], "error": "", "plans": {}}
    try:
        server = server_module()
        from . import dryrun  # after that: they need what it looked for
        from .install import install

        install(server)
        for path in dryrun.PATHS:
            try:
                dryrun.handler_of(server, path)
                out["plans"][path] = ""
            except Refusal as err:
                out["plans"][path] = err.message
    except Refusal as err:
        out["error"] = err.message
    print(json.dumps(out, indent=1))
    return 1 if out["error"] or any(out["plans"].values()) else 0


def main() -> int:
    """Run the launcher; returns the exit status."""
    if sys.argv[1:] == ["check"]:
        return check()
    try:
        server = server_module()
        from .install import install  # after that: it needs what it looked for

        install(server)
        run = getattr(importlib.import_module("omlx.cli"), "main", None)
        if not callable(run):
            raise Refusal("moved", "start the decoder: its command line has no main")
    except (Refusal, ImportError) as err:
        print(f"pdlink-omlx: {err}", file=sys.stderr)
        return 2
    sys.argv[0] = "omlx"
    found = run()
    return found if isinstance(found, int) else 0


if __name__ == "__main__":
    sys.exit(main())
