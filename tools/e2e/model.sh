#!/usr/bin/env bash
# Make (or keep) the small DeepSeek-V4 with random weights: model.sh VLLM_PYTHON DIR   (12 s, 58 MB)
set -euo pipefail

root=$(cd "$(dirname "$0")/../.." && pwd)
python=${1:?usage: model.sh VLLM_PYTHON DIR} dir=${2:?usage: model.sh VLLM_PYTHON DIR}
if [ -f "$dir/model.safetensors" ]; then
	exit 0
fi
rm -rf "$dir.part"
mkdir -p "$(dirname "$dir")"
VLLM_NO_USAGE_STATS=1 "$python" "$root/bridge/vllm/tests/engine/tiny_v4.py" "$dir.part" \
	"$root/bridge/omlx/testdecoder/testdata/tiny-qwen3" >"$dir.log" 2>&1 || { tail -20 "$dir.log" >&2; exit 1; }
mv "$dir.part" "$dir"
