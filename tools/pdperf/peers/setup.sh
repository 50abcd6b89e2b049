#!/usr/bin/env bash
# setup.sh [DIR]: install what pdperf is compared with: iperf3 and tools from Debian, UCX, NIXL and Mooncake from PyPI into
# a virtual environment in DIR (default .build/peers). Root, Debian 12. No GPU is needed. What is there is kept. What cannot
# be installed is named at the end, with status 1; the rest is installed all the same.
set -euo pipefail
cd "$(dirname "$0")/../../.."
dir=${1:-.build/peers}
python=${PYTHON:-python3.11}
export DEBIAN_FRONTEND=noninteractive

# The versions that the published figures are of.
readonly ucx=libucx-cu12==1.22.0 nixl=nixl-cu12==1.5.1 mooncake=mooncake-transfer-engine-non-cuda==0.3.13.post1 numpy=numpy==2.3.4

failed=()
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
	apt-get update -qq || true # what is there may do
	for package in "${missing[@]}"; do
		apt-get install -y -qq --no-install-recommends "$package" >/dev/null || failed+=("$package (apt-get install)")
	done
fi

# install NAME PIP-ARGUMENTS...: what the environment has of a peer is as it is written here.
install() {
	local name=$1 stamp=$dir/installed-$1
	shift
	if [ "$(cat "$stamp" 2>/dev/null)" = "$*" ]; then return; fi
	rm -f "$stamp"
	if "$dir/venv/bin/python" -m pip --quiet --disable-pip-version-check install "$@"; then
		echo "$*" >"$stamp"
	else
		failed+=("$name (pip install $*)")
	fi
}

mkdir -p "$dir"
if ! "$dir/venv/bin/python" -m pip --version >/dev/null 2>&1; then
	rm -rf "$dir/venv" "$dir"/installed*
	"$python" -m venv "$dir/venv" || failed+=("ucx, nixl, mooncake ($python -m venv)")
fi
if [ -x "$dir/venv/bin/python" ]; then
	install mooncake "$mooncake" "$numpy"
	# NIXL's wheel asks for torch, which it needs for tensors only; plain memory works without.
	install ucx --no-deps "$ucx"
	install nixl --no-deps "$nixl"
	"$dir/venv/bin/python" -m pip --disable-pip-version-check list | grep -Ei 'ucx|nixl|mooncake|numpy' || true
fi
if command -v iperf3 >/dev/null; then iperf3 --version | head -1; fi
if [ ${#failed[@]} -gt 0 ]; then
	printf 'setup.sh: cannot install %s\n' "${failed[@]}" >&2
	exit 1
fi
