#!/usr/bin/env bash
# The tests with real engines, and those with tensors: run.sh BUILD_DIR [VERSION...]
#   versions of vLLM for plain attention (default: all that are supported); everything else runs on 0.32.0
#   environments are made in BUILD_DIR/vllm on the first run (a minute and 5.7 GB each; hard links share what is the same)
# The last line counts the tests; a skipped one is a failure.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?usage: run.sh BUILD_DIR [VERSION...]}/vllm"
build=$(cd "$1/vllm" && pwd)
shift
[ $# -gt 0 ] || set -- 0.32.0 0.28.0 0.21.0
for version in 0.32.0 "$@"; do
	"$here/setup.sh" "$version" "$build/venv-$version"
done
export PDLINK_VLLM=$build PDLINK_VLLM_VERSIONS="$*" PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$here
cd "$here/../.."
exec "$build/venv-0.32.0/bin/python" -m pytest -p counts -o 'addopts=-q -p no:cacheprovider' --durations=0 --durations-min=10 \
	tests/tensors tests/engine
