#!/usr/bin/env bash
# Tests of libpdproj: test.sh OUT [host|arm64|gpu]
#
# host: what this processor can compute of it, and that a machine without a GPU is told so; and the tests that need one are
# vetted. arm64: the same for the DGX Spark's CPU, emulated. gpu: everything against the reference, and recorded prefills by
# kernels/verify; where there is no GPU the tests are listed as not run.
# OUT is where build.sh built. On a machine without Go, OUT/cuda.test and OUT/verify.test are run, which `gpu` leaves there.
set -euo pipefail
cd "$(dirname "$0")"
out=$(cd "$1" && pwd)
what=${2:-host}
go=${GO:-go}
qemu=${QEMU:-qemu-aarch64-static}

case $what in
host)
	for tag in cuda cudalib; do CGO_ENABLED=0 "$go" vet -tags "$tag" . ../verify; done
	PDLINK_PDPROJ=$out/libpdproj.so "$go" test -tags cudalib -count=1 "${@:3}" .
	;;
arm64)
	# purego needs the C library's loader, so the emulator gets the cross compiler's.
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 PDLINK_PDPROJ=$out/arm64/libpdproj.so "$go" test -tags cudalib -count=1 \
		-exec "$qemu -L /usr/aarch64-linux-gnu" "${@:3}" .
	;;
gpu)
	if command -v "$go" >/dev/null; then
		CGO_ENABLED=0 "$go" test -tags cuda -c -o "$out/cuda.test" .
		CGO_ENABLED=0 "$go" test -tags cuda -c -o "$out/verify.test" ../verify
	fi
	readonly recorded=TestOnAGPU
	if [ -e /dev/nvidiactl ]; then
		export PDLINK_PDPROJ=$out/libpdproj.so
		"$out/cuda.test" -test.v -test.timeout 10m "${@:3}"
		# Its recordings lie where the package finds them.
		(cd ../verify && "$out/verify.test" -test.v -test.timeout 10m -test.run "^$recorded\$") | tee "$out/verify.log"
		grep -q "^--- PASS: $recorded" "$out/verify.log" # a name that matches nothing passes too
	else
		"$out/verify.test" -test.list "^$recorded\$" | grep "^$recorded\$" | sed 's/^/not run, no GPU here: /'
		"$out/cuda.test" -test.list . >"$out/all"
		"$go" test -tags cudalib -list . . | grep '^Test' >"$out/host"
		grep '^Test' "$out/all" | grep -vxFf "$out/host" | sed 's/^/not run, no GPU here: /'
	fi
	;;
*) echo "test.sh: unknown part $what" >&2; exit 1 ;;
esac
