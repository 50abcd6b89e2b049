#!/usr/bin/env bash
# Make (or keep) the virtual environment with the real decoder that the checks run.
#   setup.sh VENV_DIR      about 60 s and 490 MB; at once when VENV_DIR was made from the same requirements.txt
# PYTHON names the interpreter (default python3.11: the decoder's wheels exist for that version).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
venv=${1:?usage: setup.sh VENV_DIR}
python=${PYTHON:-python3.11}
# Interpreter, script and list decide what is in the environment; the stamp is written last, so a half-made one is made anew.
want=$({ "$python" --version; cat "$here/setup.sh" "$here/requirements.txt"; } | cksum)
stamp=$venv/.made-from

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
	exit 0
fi
rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps -r "$here/requirements.txt"
"$venv/bin/python" - <<'P'
import mlx.core as mx
import omlx._version
import omlx.engine_core  # the part that the checks drive; fails here rather than in the middle of them

print("decoder: omlx", omlx._version.__version__, "on mlx", mx.__version__)
P
printf '%s\n' "$want" >"$stamp"
