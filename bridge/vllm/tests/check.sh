#!/usr/bin/env bash
# The checks of this package that need no engine: mypy, the unit tests, and a wheel that installs into a clean environment.
#   check.sh BUILD_DIR       environments are made in BUILD_DIR/vllm on the first run (20 s), and kept
# PYTHON names the interpreter (default python3.11).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
package=$(dirname "$here")
mkdir -p "${1:?usage: check.sh BUILD_DIR}/vllm"
build=$(cd "$1/vllm" && pwd)
python=${PYTHON:-python3.11}
venv=$build/checks

want=$({ "$python" --version; cat "$here/requirements.txt"; } | cksum)
if [ ! -f "$venv/.made-from" ] || [ "$(cat "$venv/.made-from")" != "$want" ]; then
	rm -rf "$venv"
	"$python" -m venv "$venv"
	"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
	printf '%s\n' "$want" >"$venv/.made-from"
fi

export PYTHONDONTWRITEBYTECODE=1
cd "$package"
"$venv/bin/python" -m mypy --cache-dir "$build/mypy"
"$venv/bin/python" -m mypy --cache-dir "$build/mypy" tests/sidecar.py tests/plans.py tests/rig.py tests/fakeproj.py tests/failing.py tests/conftest.py tests/unit/*.py
"$venv/bin/python" -m pytest tests/unit

# A wheel is built from a copy: setuptools writes beside the sources.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$package" "$work/source"
"$venv/bin/python" -m build --wheel --no-isolation --outdir "$work" "$work/source" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
"$python" -m venv "$work/clean"
"$work/clean/bin/python" -m pip install --quiet --disable-pip-version-check "$work"/*.whl
"$work/clean/bin/pdlink-vllm" --version >/dev/null
(cd / && "$work/clean/bin/python" -c 'import pdlink_vllm.request, pdlink_vllm.scheduler, pdlink_vllm.weights.export')
echo "wheel: installs and imports"
