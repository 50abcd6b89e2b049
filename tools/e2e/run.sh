#!/usr/bin/env bash
# A client's requests through all of pdlink, with real engines at both ends: vLLM prefills, oMLX decodes, nothing is played.
#   run.sh BUILD_DIR                   BUILD_DIR/pdlink is the program under test; everything made lies in BUILD_DIR
#   run.sh BUILD_DIR full [ARM...]     odd requests and faults instead: all of them, or those that are named (root)
# One line a check; exit 1 when any failed. About four minutes on two idle cores once the environments are there; PARTS=bf16,deepseek
# runs some of them.
# PDLINK_VLLM names the folder with vLLM's environment (default BUILD_DIR/vllm, as for the tests of bridge/vllm).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
build=$(cd "${1:?usage: run.sh BUILD_DIR}" && pwd)
vllm=${PDLINK_VLLM:-$build/vllm}
version=0.32.0

[ -x "$build/pdlink" ] || { echo "run.sh: $build/pdlink is missing: run 'make build' first" >&2; exit 2; }
mkdir -p "$build/testdecoder" "$build/e2e" "$vllm"
echo "== environments: the decoder, its plug-in, vLLM, clients"
"$root/bridge/omlx/testdecoder/setup.sh" "$build/testdecoder/venv"
"$root/bridge/omlx/plugin/tests/decoder/setup.sh" "$build/testdecoder/venv" "$build/e2e/decoder"
"$root/bridge/vllm/tests/engine/setup.sh" "$version" "$vllm/venv-$version"
"$here/setup.sh" "$build/e2e/clients"
"$here/model.sh" "$vllm/venv-$version/bin/python" "$vllm/models/tiny-v4"
export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
if [ "${2:-}" = full ]; then
	shift 2
	exec 8>"$build/e2e/full.lock"
	flock -n 8 || { echo "run.sh: another run uses $build/e2e/full" >&2; exit 2; }
	rm -rf "$build/e2e/full"
	mkdir "$build/e2e/full"
	exec nice -n 10 "$build/e2e/clients/bin/python" "$here/full.py" --pdlink "$build/pdlink" --pdperf "$build/pdperf" \
		--work "$build/e2e/full" --decoder "$build/e2e/decoder/bin/python" --bare "$build/testdecoder/venv/bin/python" \
		--vllm "$vllm/venv-$version/bin/python" --connector "$root/bridge/vllm" \
		--model "$root/bridge/omlx/testdecoder/testdata/tiny-qwen3" --case "$root/tools/pdlink/testdata/cases/kv-qwen3" \
		--v4 "$vllm/models/tiny-v4" "$@"
fi
rm -rf "$build/e2e/work"
mkdir "$build/e2e/work"
exec nice -n 10 "$build/e2e/clients/bin/python" "$here/e2e.py" --pdlink "$build/pdlink" --work "$build/e2e/work" \
	--decoder "$build/e2e/decoder/bin/python" --vllm "$vllm/venv-$version/bin/python" --connector "$root/bridge/vllm" \
	--model "$root/bridge/omlx/testdecoder/testdata/tiny-qwen3" --case "$root/tools/pdlink/testdata/cases/kv-qwen3" \
	--v4 "$vllm/models/tiny-v4" ${PARTS:+--parts "$PARTS"}
