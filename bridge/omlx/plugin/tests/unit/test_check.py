"""`python -m pdlink_omlx check` in an environment that lacks something: it says what, and what to run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The package as `python -m` runs it, without what was installed beside the interpreter.
BARE = (
    "import runpy, sys\n"
    "sys.path = [p for p in sys.path if 'site-packages' not in p]\n"
    "sys.argv = ['pdlink_omlx', *sys.argv[1:]]\n"
    "runpy.run_module('pdlink_omlx', run_name='__main__', alter_sys=False)\n"
)


@pytest.mark.parametrize(("command", "status"), [("check", 1), ("serve", 2)])
def test_without_numpy(tmp_path: Path, command: str, status: int) -> None:
    (tmp_path / "omlx").mkdir()
    (tmp_path / "omlx" / "__init__.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", BARE, command],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": f"{ROOT}:{tmp_path}", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=tmp_path,
        timeout=60,
    )
    said = json.loads(done.stdout)["error"] if command == "check" else done.stderr
    assert done.returncode == status, done.stderr
    assert "has no numpy" in said and f"{sys.executable} -m pip install numpy" in said, said
    assert "Traceback" not in done.stderr
