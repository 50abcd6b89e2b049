#!/usr/bin/env bash
# The tests with real engines, and those with tensors: run.sh BUILD_DIR
#   environments are made in BUILD_DIR/vllm on the first run (a minute and 5.7 GB each; hard links share what is the same)
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?usage: run.sh BUILD_DIR}/vllm"
build=$(cd "$1/vllm" && pwd)
for version in 0.32.0 0.28.0 0.21.0; do
	"$here/setup.sh" "$version" "$build/venv-$version"
done
export PDLINK_VLLM=$build PYTHONDONTWRITEBYTECODE=1
cd "$here/../.."
exec "$build/venv-0.32.0/bin/python" -m pytest -o 'addopts=-q -p no:cacheprovider' --durations=0 --durations-min=10 tests/tensors tests/engine
