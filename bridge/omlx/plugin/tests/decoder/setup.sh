#!/usr/bin/env bash
# Make (or keep) an environment with the real decoder and this package, installed from a wheel as a user would.
#   setup.sh DECODER_VENV VENV_DIR      DECODER_VENV is what bridge/omlx/testdecoder/setup.sh makes
# The decoder is not copied: VENV_DIR names its packages by a .pth file. A few seconds.
# Tests build with the newest setuptools from PyPI, as pip does for everybody.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
decoder=$(cd "${1:?usage: setup.sh DECODER_VENV VENV_DIR}" && pwd)
venv=${2:?usage: setup.sh DECODER_VENV VENV_DIR}
package=$here/../..
want=$({ cat "$decoder/.made-from" 2>/dev/null; cat "$here/setup.sh"; cd "$package" && cat pyproject.toml setup.py ./*.pth pdlink_omlx/*.py; } | cksum)
stamp=$venv/.made-from

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
	exit 0
fi
rm -rf "$venv"
"$decoder/bin/python" -m venv "$venv"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$decoder/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' >"$site/decoder.pth"
# Built from a copy: setuptools leaves its work beside the sources.
source=$(mktemp -d)
trap 'rm -rf "$source"' EXIT
cp -r "$package"/{pyproject.toml,setup.py,MANIFEST.in,README.md,pdlink_omlx.pth,pdlink_omlx} "$source"
"$venv/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$source/wheel" "$source"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$source"/wheel/*.whl
printf '%s\n' "$want" >"$stamp"
