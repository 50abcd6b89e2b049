#!/usr/bin/env bash
# Tests of libpdproj: test.sh OUT [host|arm64|gpu|sanitize|bench|soak] [ARGUMENT...]
#
# host: what this processor can compute of it, and that a machine without a GPU is told so; and the tests that need one are
# vetted. arm64: the same for the DGX Spark's CPU, emulated. The others need a GPU, and list what was not run where there is none:
# gpu: everything against the reference, and recorded prefills by kernels/verify. sanitize: compute-sanitizer over the kernels,
# small whole calls and the small Go tests. bench: speed against the bare products and PyTorch, kv, host cost, early pieces.
# soak [MINUTES]: sixteen requests that take turns and are given up.
# OUT is where build.sh built. On a machine without Go, OUT/cuda.test and OUT/verify.test are run, which `gpu` and `sanitize` leave there.
set -euo pipefail
out=$(cd "$1" && pwd)
cd "$(dirname "$0")"
what=${2:-host}
go=${GO:-go}
qemu=${QEMU:-qemu-aarch64-static}
python=${PYTHON:-python3} # one with torch, for bench
gpu=/dev/nvidiactl
export PDLINK_PDPROJ=$out/libpdproj.so

# without_gpu WHAT...: whether there is none; then names what was not run.
without_gpu() {
	[ ! -e "$gpu" ] || return 1
	printf 'not run, no GPU here: %s\n' "$@"
}

# compiled: leaves OUT/cuda.test and OUT/verify.test, where there is Go; else they are there already.
compiled() {
	command -v "$go" >/dev/null || return 0
	CGO_ENABLED=0 "$go" test -tags cuda -c -o "$out/cuda.test" .
	CGO_ENABLED=0 "$go" test -tags cuda -c -o "$out/verify.test" ../verify
}

# passed LOG NAME...: each of these tests has run and passed; a name that matches nothing passes too.
passed() {
	local log=$1 name
	shift
	for name in "$@"; do
		grep -q "^--- PASS: $name " "$log" || { echo "test.sh: $name did not run, or was skipped" >&2; return 1; }
	done
}

# sanitized TOOL COMMAND...: any report is a failure.
sanitized() {
	local tool=$1
	shift
	echo "compute-sanitizer $tool: ${*##*/}"
	"$sanitizer" --tool "$tool" --error-exitcode 9 "$@"
}

case $what in
host)
	for tag in cuda cudalib; do CGO_ENABLED=0 "$go" vet -tags "$tag" . ../verify; done
	"$go" test -tags cudalib -count=1 "${@:3}" .
	;;
arm64)
	# purego needs the C library's loader, so the emulator gets the cross compiler's.
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 PDLINK_PDPROJ=$out/arm64/libpdproj.so "$go" test -tags cudalib -count=1 \
		-exec "$qemu -L /usr/aarch64-linux-gnu" "${@:3}" .
	;;
gpu)
	compiled
	readonly recorded=TestOnAGPU
	if [ -e "$gpu" ]; then
		"$out/cuda.test" -test.v -test.timeout 10m "${@:3}"
		# Its recordings lie where the package finds them.
		(cd ../verify && "$out/verify.test" -test.v -test.timeout 10m -test.run "^$recorded\$") | tee "$out/verify.log"
		passed "$out/verify.log" "$recorded"
	else
		"$out/verify.test" -test.list "^$recorded\$" | grep "^$recorded\$" | sed 's/^/not run, no GPU here: /'
		"$out/cuda.test" -test.list . >"$out/all"
		"$go" test -tags cudalib -list . . | grep '^Test' >"$out/host"
		grep '^Test' "$out/all" | grep -vxFf "$out/host" | sed 's/^/not run, no GPU here: /'
	fi
	;;
sanitize)
	without_gpu 'compute-sanitizer' && exit
	sanitizer=${SANITIZER:-$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)}
	[ -x "$sanitizer" ] || { echo "test.sh sanitize: no compute-sanitizer in PATH: install it with the CUDA toolkit, or name it with SANITIZER" >&2; exit 1; }
	compiled
	readonly names=(TestRandomShapes TestDeviceRefuses TestGatherAgainstReference)
	readonly small=(-test.short -test.v -test.timeout 60m -test.run "^($(IFS='|'; echo "${names[*]}"))\$")
	for tool in memcheck racecheck initcheck synccheck; do sanitized "$tool" "$out/bench" alone; done
	sanitized memcheck "$out/bench" small
	sanitized memcheck "$out/cuda.test" "${small[@]}" | tee "$out/memcheck.log"
	passed "$out/memcheck.log" "${names[@]}"
	# It fails on cuBLASLt's own kernels.
	export LD_LIBRARY_PATH=$out/plain${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
	sanitized racecheck "$out/bench" small
	sanitized racecheck "$out/cuda.test" "${small[@]}" | tee "$out/racecheck.log"
	passed "$out/racecheck.log" "${names[@]}"
	;;
bench)
	without_gpu 'bench all' torch_baseline.py 'bench speed' && exit
	"$python" -c 'import torch' 2>/dev/null || { echo "test.sh bench: $python has no torch: name one that has with PYTHON" >&2; exit 1; }
	# PyTorch between two runs of ours.
	"$out/bench" all | tee "$out/bench.log"
	"$python" -B torch_baseline.py | tee -a "$out/bench.log"
	"$out/bench" speed | tee -a "$out/bench.log"
	if grep -q 'is projected: NO' "$out/bench.log"; then echo "test.sh bench: the first pieces are late" >&2; exit 1; fi
	;;
soak)
	without_gpu "bench soak ${3:-6}" && exit
	"$out/bench" soak "${3:-6}" | tee "$out/soak.log"
	;;
*) echo "test.sh: unknown part $what" >&2; exit 1 ;;
esac
