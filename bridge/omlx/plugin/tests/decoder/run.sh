#!/usr/bin/env bash
# Does the plug-in do its work in a real decoder? One line a check; exit 1 when any failed.
#   run.sh BUILD_DIR       BUILD_DIR/pdlink is the program whose blocks are adopted; everything made lies in BUILD_DIR
# PDLINK_DECODER_VENV names another decoder's environment than the one of bridge/omlx/testdecoder.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:?usage: run.sh BUILD_DIR}" && pwd)
testdecoder=$here/../../../testdecoder
cases=$here/../../../../../tools/pdlink/testdata/cases
decoder=${PDLINK_DECODER_VENV:-$build/testdecoder/venv}

[ -x "$build/pdlink" ] || { echo "run.sh: $build/pdlink is missing: run 'make build' first" >&2; exit 2; }
mkdir -p "$build/testdecoder" "$build/plugin"
[ -n "${PDLINK_DECODER_VENV:-}" ] || "$testdecoder/setup.sh" "$decoder"
"$here/setup.sh" "$decoder" "$build/plugin/venv"
rm -rf "$build/plugin/work"
mkdir "$build/plugin/work"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$testdecoder
exec "$build/plugin/venv/bin/python" "$here/run_checks.py" --pdlink "$build/pdlink" --case "$cases/kv-qwen3" \
	--model "$testdecoder/testdata/tiny-qwen3" --work "$build/plugin/work"
