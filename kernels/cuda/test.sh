#!/usr/bin/env bash
# Tests of libpdproj: test.sh OUT [host|arm64|gpu]
#
# host: what this processor can compute of it, and that a machine without a GPU is told so. arm64: the same for the DGX
# Spark's CPU, emulated. gpu: everything against the reference; where there is no GPU the tests are listed as not run.
# OUT is where build.sh built. On a machine without Go, OUT/cuda.test is run, which `gpu` leaves there.
set -euo pipefail
cd "$(dirname "$0")"
out=$(cd "$1" && pwd)
what=${2:-host}
go=${GO:-go}
qemu=${QEMU:-qemu-aarch64-static}

case $what in
host)
	PDLINK_PDPROJ=$out/libpdproj.so "$go" test -tags cudalib -count=1 "${@:3}" .
	;;
arm64)
	# purego needs the C library's loader, so the emulator gets the cross compiler's.
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 PDLINK_PDPROJ=$out/arm64/libpdproj.so "$go" test -tags cudalib -count=1 \
		-exec "$qemu -L /usr/aarch64-linux-gnu" "${@:3}" .
	;;
gpu)
	if command -v "$go" >/dev/null; then CGO_ENABLED=0 "$go" test -tags cuda -c -o "$out/cuda.test" .; fi
	if [ -e /dev/nvidiactl ]; then
		PDLINK_PDPROJ=$out/libpdproj.so "$out/cuda.test" -test.v -test.timeout 10m "${@:3}"
	else
		"$out/cuda.test" -test.list . >"$out/all"
		"$go" test -tags cudalib -list . . | grep '^Test' >"$out/host"
		grep '^Test' "$out/all" | grep -vxFf "$out/host" | sed 's/^/not run, no GPU here: /'
	fi
	;;
*) echo "test.sh: unknown part $what" >&2; exit 1 ;;
esac
