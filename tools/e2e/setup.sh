#!/usr/bin/env bash
# Make (or keep) an environment with the clients that people use: setup.sh VENV_DIR
# PYTHON names the interpreter (default python3.11).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
venv=${1:?usage: setup.sh VENV_DIR}
python=${PYTHON:-python3.11}
want=$({ "$python" --version; cat "$here/setup.sh" "$here/requirements.txt"; } | cksum)
stamp=$venv/.made-from

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
	exit 0
fi
rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
printf '%s\n' "$want" >"$stamp"
