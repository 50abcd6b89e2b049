#!/usr/bin/env bash
# setup.sh [DIR]: install what pdperf is compared with: iperf3 and tools from Debian, UCX, NIXL and Mooncake from PyPI into
# a virtual environment in DIR (default .build/peers). Root, Debian 12. No GPU is needed. What is there is kept.
set -euo pipefail
cd "$(dirname "$0")/../../.."
dir=${1:-.build/peers}
python=${PYTHON:-python3.11}
export DEBIAN_FRONTEND=noninteractive

# The versions that the published figures are of.
readonly ucx=libucx-cu12==1.22.0 nixl=nixl-cu12==1.5.1 mooncake=mooncake-transfer-engine-non-cuda==0.3.13.post1 numpy=numpy==2.3.4

missing=()
for pair in iperf3:iperf3 ip:iproute2 tc:iproute2; do
	command -v "${pair%:*}" >/dev/null || missing+=("${pair#*:}")
done
# Libraries that the wheels expect of the system.
for library in libnuma.so.1:libnuma1 liburing.so.2:liburing2 libibverbs.so.1:libibverbs1; do
	ldconfig -p | grep -q "${library%:*}" || missing+=("${library#*:}")
done
"$python" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if [ ${#missing[@]} -gt 0 ]; then
	apt-get update -qq
	apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi

stamp=$dir/installed
want="$ucx $nixl $mooncake $numpy"
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
	mkdir -p "$dir"
	rm -rf "$dir/venv" "$stamp"
	"$python" -m venv "$dir/venv"
	pip="$dir/venv/bin/python -m pip --quiet --disable-pip-version-check install"
	$pip "$mooncake" "$numpy"
	# NIXL's wheel asks for torch, which it needs for tensors only; plain memory works without.
	$pip --no-deps "$nixl" "$ucx"
	echo "$want" >"$stamp"
fi
iperf3 --version | head -1
"$dir/venv/bin/python" -m pip --disable-pip-version-check list | grep -Ei 'ucx|nixl|mooncake|numpy'
