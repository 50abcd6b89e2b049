#!/usr/bin/env bash
# Builds libpdproj.so and its programs: build.sh OUT [lib|arm64|bench|plain|table|check|ring|proof|all]
#
# nvcc comes from NVCC or PATH; else, or where NVCC=pypi, the compiler that PyPI ships is installed into OUT/nvcc (any
# machine with python, no GPU needed). OUT also gets ptxas.log, from which `check` compares registers and
# spills with registers.txt, and `table` writes that file anew.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$(mkdir -p "$1" && cd "$1" && pwd)
what=${2:-lib}
python=${PYTHON:-python3}

# The one that registers.txt was written with; another compiler is only held to have no spills.
readonly toolkit=13.5.37
readonly sources="epilogue gemm ring config handle products project request device kv"
# Ampere to Blackwell as machine code, and as PTX for what comes after.
archs=${ARCHS:-80 86 89 90a 100 120 121}
readonly ptx=80

wheels() {
	local venv=$out/nvcc
	if [ ! -e "$venv/ready" ]; then
		rm -rf "$venv"
		"$python" -m venv "$venv"
		"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "nvidia-cuda-nvcc==$toolkit" "nvidia-cuda-runtime==$toolkit" \
			"nvidia-cuda-crt==$toolkit" "nvidia-nvvm==$toolkit" "nvidia-cuda-cccl==13.3.5.0.6"
		# Only the headers of cuBLASLt are needed, not its half gigabyte.
		"$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps -d "$venv/blas" nvidia-cublas==13.10.0.20
		"$venv/bin/python" - "$venv" <<-'PY'
			import glob, sys, zipfile
			venv = sys.argv[1]
			into = glob.glob(venv + "/lib/python*/site-packages")[0]
			with zipfile.ZipFile(glob.glob(venv + "/blas/*.whl")[0]) as z:
			    for name in z.namelist():
			        if "/include/" in name:
			            z.extract(name, into)
		PY
		rm -rf "$venv/blas"
		touch "$venv/ready"
	fi
	root=$(echo "$venv"/lib/python*/site-packages/nvidia/cu13)
	nvcc=$root/bin/nvcc
	include=(-I"$root/include")
	libdir=$root/lib
}

find_nvcc() {
	include=() libdir=
	nvcc=${NVCC:-$(command -v nvcc || true)}
	if [ -z "$nvcc" ] || [ "$nvcc" = pypi ]; then wheels; fi
	"$nvcc" --version | tail -2 | head -1
}

gencode() {
	local a
	for a in $archs; do printf -- '-gencode=arch=compute_%s,code=sm_%s ' "$a" "$a"; done
	printf -- '-gencode=arch=compute_%s,code=compute_%s' "$ptx" "$ptx"
}

flags=(-O3 -std=c++17 -fmad=false --threads 2 -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-ffp-contract=off,-Wall,-Wextra
	-diag-suppress=20012)

lib() {
	local s made=0
	mkdir -p "$out/obj"
	for s in $sources; do
		local o=$out/obj/$s.o
		if [ -e "$o" ] && [ -z "$(find "$here" -maxdepth 1 \( -name "$s.cu" -o -name '*.cuh' -o -name '*.h' -o -name build.sh \) -newer "$o")" ]; then continue; fi
		echo "nvcc $s.cu"
		# shellcheck disable=SC2046
		"$nvcc" "${flags[@]}" $(gencode) "${include[@]}" -Xptxas -v -c -o "$o" "$here/$s.cu" 2>"$out/obj/$s.log" || { cat "$out/obj/$s.log"; exit 1; }
		grep -vE 'ptxas info|bytes stack frame|^$|Overriding' "$out/obj/$s.log" || true
		made=1
	done
	cat "$out"/obj/*.log >"$out/ptxas.log"
	[ "$made" = 0 ] && [ -e "$out/libpdproj.so" ] && return
	link "$nvcc" "$out/libpdproj.so" "$out/obj" "$libdir"
	ls -l "$out/libpdproj.so"
}

# link NVCC OUTPUT OBJECTS LIBDIR [OPTION...]: exports the interface and nothing else.
link() {
	local nvcc=$1 output=$2 objects=$3 libdir=$4
	shift 4
	local o=()
	for s in $sources; do o+=("$objects/$s.o"); done
	"$nvcc" -shared -cudart static ${libdir:+-L"$libdir"} "$@" -Xlinker --exclude-libs=ALL,--as-needed,-z,defs,-soname,libpdproj.so \
		-o "$output" "${o[@]}" -ldl -lpthread -lrt
}

# The same for the CPU of a DGX Spark: device code is compiled again, for one GPU, since only the host half differs.
arm64() {
	[ -n "$libdir" ] || wheels
	command -v aarch64-linux-gnu-g++ >/dev/null || { echo "build.sh arm64: install g++-aarch64-linux-gnu (Debian)" >&2; exit 1; }
	local to=$out/arm64
	mkdir -p "$to/obj"
	if [ ! -e "$to/lib/libcudart_static.a" ]; then
		"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: -d "$to/wheels" \
			--platform manylinux2014_aarch64 --platform manylinux_2_28_aarch64 "nvidia-cuda-runtime==$toolkit"
		"$python" - "$to" <<-'PY'
			import glob, os, sys, zipfile
			to = sys.argv[1]
			os.makedirs(to + "/lib", exist_ok=True)
			with zipfile.ZipFile(glob.glob(to + "/wheels/*.whl")[0]) as z:
			    for name in z.namelist():
			        if name.endswith(("libcudart_static.a", "libcudadevrt.a")):
			            with open(to + "/lib/" + os.path.basename(name), "wb") as f:
			                f.write(z.read(name))
		PY
	fi
	local s
	for s in $sources; do
		echo "nvcc $s.cu, arm64"
		"$nvcc" -ccbin aarch64-linux-gnu-g++ "${flags[@]}" -gencode=arch=compute_121,code=sm_121 "${include[@]}" -c -o "$to/obj/$s.o" "$here/$s.cu"
	done
	link "$nvcc" "$to/libpdproj.so" "$to/obj" "$to/lib" -ccbin aarch64-linux-gnu-g++
	ls -l "$to/libpdproj.so"
}

bench() {
	echo "nvcc bench.cu bench_more.cu"
	# shellcheck disable=SC2046
	"$nvcc" -O3 -std=c++17 -fmad=false $(gencode) -diag-suppress=20012 \
		"${include[@]}" -cudart static ${libdir:+-L"$libdir"} -o "$out/bench" "$here/bench.cu" "$here/bench_more.cu" "$out/obj/epilogue.o" \
		-L"$out" -lpdproj -Xlinker -rpath='$ORIGIN' -ldl -lpthread -lrt
}

# In place of cuBLASLt where compute-sanitizer cannot follow it.
plain() {
	mkdir -p "$out/plain"
	# shellcheck disable=SC2046
	"$nvcc" -O3 -std=c++17 -shared -cudart static $(gencode) -diag-suppress=20012 -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra \
		"${include[@]}" ${libdir:+-L"$libdir"} -Xlinker --exclude-libs=ALL,-z,defs,-soname,libcublasLt.so.13 -o "$out/plain/libcublasLt.so.13" \
		"$here/plain_blas.cu" -ldl -lpthread -lrt
}

# The order of staging, copies and tickets, against a simulated device on this processor.
ring() {
	"$nvcc" -O1 -std=c++17 -cudart none "${include[@]}" -Xcompiler -Wall,-Wextra -x c++ -o "$out/ring_check" "$here/ring.cu" "$here/ring_check.cu" -lpthread
	"$out/ring_check"
}

# That products are taken only on a proof whose own kernels ran, with kernels and products of this processor.
proof() {
	"$nvcc" -O1 -std=c++17 -gencode=arch=compute_80,code=sm_80 -diag-suppress=20012 "${include[@]}" -c -o "$out/proof_gemm.o" "$here/gemm.cu"
	"$nvcc" -O1 -std=c++17 -cudart none "${include[@]}" -Xcompiler -Wall,-Wextra -x c++ -c -o "$out/proof_check.o" "$here/proof_check.cu"
	"$nvcc" -cudart none -o "$out/proof_check" "$out/proof_gemm.o" "$out/proof_check.o" -ldl
	"$out/proof_check"
}

# Kernel, architecture, registers, spilled bytes.
measured() {
	awk '
		# Without the mangled name of its file, which depends on where that lies.
		/Compiling entry function/ { split($0, q, "\047"); match(q[2], /pdproj_[a-z0-9]+(I[0-9a-z]+E)?/); kernel = substr(q[2], RSTART, RLENGTH); arch = q[4] }
		/bytes spill stores/ { spill = 0; for (i = 2; i <= NF; i++) if ($i == "bytes" && $(i+1) == "spill") spill += $(i-1) }
		/Used [0-9]+ registers/ { for (i = 1; i < NF; i++) if ($i == "Used") print kernel, arch, $(i+1), spill }
	' "$out/ptxas.log" | LC_ALL=C sort
}

check() {
	local bad=0
	measured >"$out/registers.now"
	[ -s "$out/registers.now" ] || { echo "registers: the compiler reported none" >&2; exit 1; }
	if awk '$4 > 0' "$out/registers.now" | grep .; then echo "registers: the kernels above spill" >&2; bad=1; fi
	if "$nvcc" --version | grep -q "V$toolkit"; then
		diff "$here/registers.txt" "$out/registers.now" || { echo "registers: not as recorded (kernel, architecture, registers, spilled bytes); if meant: build.sh OUT table" >&2; bad=1; }
	fi
	[ "$bad" = 0 ] && echo "registers: $(wc -l <"$out/registers.now") kernels as recorded, none spills"
	return "$bad"
}

find_nvcc
case $what in
lib) lib ;;
arm64) arm64 ;;
bench) lib; bench ;;
plain) plain ;;
check) lib; check ;;
ring) ring ;;
proof) proof ;;
table) lib; measured >"$here/registers.txt" ;;
all) ring; proof; lib; check; bench; plain; arm64 ;;
*) echo "build.sh: unknown part $what" >&2; exit 1 ;;
esac
