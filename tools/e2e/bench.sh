#!/usr/bin/env bash
# `pdlink bench` with real engines at both ends (bench.py):
#   bench.sh BUILD_DIR [ARGUMENTS of bench.py]
# Environments are those of run.sh; everything made lies in BUILD_DIR/e2e/bench, the report too: house/report.json and .md.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$(cd "${1:?usage: bench.sh BUILD_DIR [ARGUMENTS]}" && pwd)
shift
vllm=${PDLINK_VLLM:-$build/vllm}
version=0.32.0

program=${PDLINK_PROGRAM:-$build/pdlink}
[ -x "$program" ] || { echo "bench.sh: $program is missing: run 'make build' first" >&2; exit 2; }
mkdir -p "$build/testdecoder" "$build/e2e" "$vllm"
"$root/bridge/omlx/testdecoder/setup.sh" "$build/testdecoder/venv"
"$root/bridge/omlx/plugin/tests/decoder/setup.sh" "$build/testdecoder/venv" "$build/e2e/decoder"
"$root/bridge/vllm/tests/engine/setup.sh" "$version" "$vllm/venv-$version"
"$here/setup.sh" "$build/e2e/clients"
rm -rf "$build/e2e/bench"
mkdir "$build/e2e/bench"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
exec nice -n 10 "$build/e2e/clients/bin/python" "$here/bench.py" --pdlink "$program" --work "$build/e2e/bench" \
	--decoder "$build/e2e/decoder/bin/python" --vllm "$vllm/venv-$version/bin/python" --connector "$root/bridge/vllm" \
	--model "$root/bridge/omlx/testdecoder/testdata/tiny-qwen3" --case "$root/tools/pdlink/testdata/cases/kv-qwen3" "$@"
