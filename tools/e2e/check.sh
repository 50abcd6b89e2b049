#!/usr/bin/env bash
# Types of everything in this folder: check.sh BUILD_DIR
#   mypy is that of bridge/vllm/tests/check.sh, which runs before; the SDKs are those of setup.sh.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?usage: check.sh BUILD_DIR}/e2e"
build=$(cd "$1" && pwd)
"$here/setup.sh" "$build/e2e/clients"
cd "$here"
exec "$build/vllm/checks/bin/python" -m mypy --config-file mypy.ini --cache-dir "$build/vllm/mypy" \
	--python-executable "$build/e2e/clients/bin/python"
