#!/usr/bin/env bash
# Does the real decoder adopt the blocks that pdlink writes? One line a check; exit 1 when any failed.
#   run.sh BUILD_DIR       BUILD_DIR/pdlink is the program under test; everything made lies in BUILD_DIR/testdecoder
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:?usage: run.sh BUILD_DIR}" && pwd)
cases=$here/../../../tools/pdlink/testdata/cases

[ -x "$build/pdlink" ] || { echo "run.sh: $build/pdlink is missing: run 'make build' first" >&2; exit 2; }
mkdir -p "$build/testdecoder"
"$here/setup.sh" "$build/testdecoder/venv"
rm -rf "$build/testdecoder/work"
mkdir "$build/testdecoder/work"
# Offline: the models are here, and the decoder must not ask for others. No bytecode beside the sources.
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
exec "$build/testdecoder/venv/bin/python" "$here/checks.py" --pdlink "$build/pdlink" \
	--case "$cases/kv-qwen3" --work "$build/testdecoder/work"
