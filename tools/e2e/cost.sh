#!/usr/bin/env bash
# What a bridged request costs beyond the engine's own time (cost.py):
#   cost.sh BUILD_DIR [ARGUMENTS of cost.py]      root, for the parts that need network namespaces
# Environments are those of run.sh; everything made lies in BUILD_DIR/e2e/cost.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$(cd "${1:?usage: cost.sh BUILD_DIR [ARGUMENTS]}" && pwd)
shift
vllm=${PDLINK_VLLM:-$build/vllm}
version=0.32.0

[ -x "$build/pdlink" ] || { echo "cost.sh: $build/pdlink is missing: run 'make build' first" >&2; exit 2; }
mkdir -p "$build/testdecoder" "$build/e2e/cost" "$vllm"
"$root/bridge/omlx/testdecoder/setup.sh" "$build/testdecoder/venv"
"$root/bridge/omlx/plugin/tests/decoder/setup.sh" "$build/testdecoder/venv" "$build/e2e/decoder"
"$root/bridge/vllm/tests/engine/setup.sh" "$version" "$vllm/venv-$version"
"$here/setup.sh" "$build/e2e/clients"
rm -rf "$build/e2e/cost"
mkdir "$build/e2e/cost"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
exec "$build/e2e/clients/bin/python" "$here/cost.py" --pdlink "$build/pdlink" --work "$build/e2e/cost" \
	--decoder "$build/e2e/decoder/bin/python" --vllm "$vllm/venv-$version/bin/python" --connector "$root/bridge/vllm" \
	--model "$root/bridge/omlx/testdecoder/testdata/tiny-qwen3" --case "$root/tools/pdlink/testdata/cases/kv-qwen3" "$@"
