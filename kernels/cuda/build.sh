#!/usr/bin/env bash
# Builds libpdproj.so and its programs: build.sh OUT [lib|arm64|bench|plain|table|check|ring|order|proof|all]
#
# An object or library is made anew when what decides it did change: sources, options, the compilers. Everything appears whole, by
# rename, and what cannot be made anew is removed, so that nothing goes on with a library of other sources.
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
readonly toolkit=13.5.37 cccl=13.3.5.0.6 blas=13.10.0.20
readonly sources="epilogue gemm ring config handle products project request device kv"
# Ampere to Blackwell as machine code, and as PTX for what comes after.
archs=${ARCHS:-80 86 89 90a 100 120 121}
readonly ptx=80

# What is being made, in a place of its own until it is whole.
tmp=$(mktemp -d "$out/making.XXXXXX")
making=
finish() {
	local code=$?
	rm -rf "$tmp"
	[ "$code" = 0 ] || [ -z "$making" ] || rm -f "$making"
}
trap finish EXIT

wheels() {
	local venv=$out/nvcc
	if [ "$(cat "$venv/ready" 2>/dev/null)" != "$toolkit $cccl $blas" ]; then
		rm -rf "$venv"
		"$python" -m venv "$venv"
		"$venv/bin/python" -m pip install --quiet --disable-pip-version-check "nvidia-cuda-nvcc==$toolkit" "nvidia-cuda-runtime==$toolkit" \
			"nvidia-cuda-crt==$toolkit" "nvidia-nvvm==$toolkit" "nvidia-cuda-cccl==$cccl"
		# Only the headers of cuBLASLt are needed, not its half gigabyte.
		"$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps -d "$venv/blas" "nvidia-cublas==$blas"
		"$venv/bin/python" - "$venv" <<-'PY'
			import glob, sys, zipfile
			venv = sys.argv[1]
			into = glob.glob(glob.escape(venv) + "/lib/python*/site-packages")[0]
			with zipfile.ZipFile(glob.glob(glob.escape(venv) + "/blas/*.whl")[0]) as z:
			    for name in z.namelist():
			        if "/include/" in name:
			            z.extract(name, into)
		PY
		rm -rf "$venv/blas"
		echo "$toolkit $cccl $blas" >"$venv/ready"
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

# The options that name the GPUs.
gencode() {
	local a
	gpus=()
	for a in $archs; do gpus+=("-gencode=arch=compute_$a,code=sm_$a"); done
	gpus+=("-gencode=arch=compute_$ptx,code=compute_$ptx")
}

flags=(-O3 -std=c++17 -fmad=false --threads 2 -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-ffp-contract=off,-Wall,-Wextra
	-diag-suppress=20012)
# The interface is exported, and nothing else.
linking=(-shared -cudart static -Xlinker "--exclude-libs=ALL,--as-needed,-z,defs,-soname,libpdproj.so")

digest() { sha256sum "$@" | cut -d' ' -f1; }

# made FILE KEY: whether the file is there and of that key. keep FILE KEY: what lies in tmp under its name becomes it.
made() { [ -e "$1" ] && [ -e "$1.key" ] && [ "$(<"$1.key")" = "$2" ]; }
keep() {
	rm -f "$1.key"
	mv -f "$tmp/${1##*/}" "$1"
	echo "$2" >"$1.key"
}

# objects DIRECTORY LABEL OPTION...: compiles the sources that changed, and sets key to what all objects depend on.
objects() {
	local to=$1 label=$2 s common sums want
	shift 2
	mkdir -p "$to"
	common=$({ "$nvcc" --version; "${ccbin:-g++}" --version | head -1; printf '%s\n' "${include[@]}" "$@"; cat "$here"/*.cuh "$here"/*.h; } | digest)
	# shellcheck disable=SC2086
	mapfile -t sums < <(cd "$here" && digest $(printf '%s.cu ' $sources))
	key=$common
	for s in $sources; do
		want="$common ${sums[0]}"
		sums=("${sums[@]:1}")
		key+=" ${want#* }"
		made "$to/$s.o" "$want" && continue
		echo "nvcc $s.cu$label"
		"$nvcc" ${ccbin:+-ccbin "$ccbin"} "$@" "${include[@]}" -c -o "$tmp/$s.o" "$here/$s.cu" 2>"$tmp/$s.log" || { cat "$tmp/$s.log"; exit 1; }
		grep -vE 'ptxas info|bytes stack frame|^$|Overriding' "$tmp/$s.log" || true
		mv -f "$tmp/$s.log" "$to/$s.log"
		keep "$to/$s.o" "$want"
	done
}

# link OUTPUT OBJECTS LIBDIR: with the key that objects left. LIBDIR's runtime is linked in; without one it is nvcc's own.
link() {
	local output=$1 objects=$2 libdir=$3 s o=() want
	want=$({ echo "$key" "${linking[@]}" "$libdir"; [ -z "$libdir" ] || cat "$libdir/libcudart_static.a"; } | digest)
	made "$output" "$want" && return
	for s in $sources; do o+=("$objects/$s.o"); done
	"$nvcc" ${ccbin:+-ccbin "$ccbin"} "${linking[@]}" ${libdir:+-L"$libdir"} -o "$tmp/${output##*/}" "${o[@]}" -ldl -lpthread -lrt
	keep "$output" "$want"
	ls -l "$output"
}

# program NAME OPTION...: links a program, always.
program() {
	local name=$1
	shift
	making=$out/$name
	"$nvcc" "$@" -o "$tmp/${name##*/}"
	mkdir -p "$(dirname "$out/$name")"
	mv -f "$tmp/${name##*/}" "$out/$name"
	making=
}

lib() {
	local s ccbin=
	making=$out/libpdproj.so
	objects "$out/obj" "" "${flags[@]}" "${gpus[@]}" -Xptxas -v
	for s in $sources; do cat "$out/obj/$s.log"; done >"$out/ptxas.log"
	link "$out/libpdproj.so" "$out/obj" "$libdir"
	making=
}

# The same for the CPU of a DGX Spark: device code is compiled again, for one GPU, since only the host half differs.
arm64() {
	[ -n "$libdir" ] || wheels
	command -v aarch64-linux-gnu-g++ >/dev/null || { echo "build.sh arm64: install g++-aarch64-linux-gnu (Debian)" >&2; exit 1; }
	local to=$out/arm64
	making=$to/libpdproj.so
	mkdir -p "$to/obj"
	if [ "$(cat "$to/lib/ready" 2>/dev/null)" != "$toolkit" ]; then
		rm -rf "$to/lib" "$to/wheels"
		"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: -d "$to/wheels" \
			--platform manylinux2014_aarch64 --platform manylinux_2_28_aarch64 "nvidia-cuda-runtime==$toolkit"
		"$python" - "$to" <<-'PY'
			import glob, os, sys, zipfile
			to = sys.argv[1]
			os.makedirs(to + "/lib", exist_ok=True)
			with zipfile.ZipFile(glob.glob(glob.escape(to) + "/wheels/*.whl")[0]) as z:
			    for name in z.namelist():
			        if name.endswith(("libcudart_static.a", "libcudadevrt.a")):
			            with open(to + "/lib/" + os.path.basename(name), "wb") as f:
			                f.write(z.read(name))
		PY
		rm -rf "$to/wheels"
		echo "$toolkit" >"$to/lib/ready"
	fi
	local ccbin=aarch64-linux-gnu-g++
	objects "$to/obj" ", arm64" "${flags[@]}" -gencode=arch=compute_121,code=sm_121
	link "$to/libpdproj.so" "$to/obj" "$to/lib"
	making=
}

bench() {
	echo "nvcc bench.cu bench_more.cu"
	program bench -O3 -std=c++17 -fmad=false "${gpus[@]}" -diag-suppress=20012 \
		"${include[@]}" -cudart static ${libdir:+-L"$libdir"} "$here/bench.cu" "$here/bench_more.cu" "$out/obj/epilogue.o" \
		-L"$out" -lpdproj -Xlinker -rpath='$ORIGIN' -ldl -lpthread -lrt
}

# In place of cuBLASLt where compute-sanitizer cannot follow it.
plain() {
	program plain/libcublasLt.so.13 -O3 -std=c++17 -shared -cudart static "${gpus[@]}" -diag-suppress=20012 -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra \
		"${include[@]}" ${libdir:+-L"$libdir"} -Xlinker --exclude-libs=ALL,-z,defs,-soname,libcublasLt.so.13 \
		"$here/plain_blas.cu" -ldl -lpthread -lrt
}

# What follows runs on this processor, with a runtime of its own.
simulated=(-O1 -std=c++17 -cudart none -Xcompiler "-Wall,-Wextra")

# The order of staging, copies and tickets, against a simulated device.
ring() {
	program ring_check "${simulated[@]}" "${include[@]}" -x c++ "$here/ring.cu" "$here/ring_check.cu" -lpthread
	"$out/ring_check"
}

# That whatever fails of a call, what it began is ordered before later ones.
order() {
	program order_check "${simulated[@]}" "${include[@]}" -x c++ "$here/products.cu" "$here/project.cu" "$here/request.cu" "$here/ring.cu" "$here/order_check.cu" -lpthread
	"$out/order_check"
}

# That products are taken only on a proof whose own kernels ran, with kernels and products of this processor.
proof() {
	"$nvcc" -O1 -std=c++17 -gencode=arch=compute_80,code=sm_80 -diag-suppress=20012 "${include[@]}" -c -o "$tmp/proof_gemm.o" "$here/gemm.cu"
	"$nvcc" "${simulated[@]}" "${include[@]}" -x c++ -c -o "$tmp/proof_check.o" "$here/proof_check.cu"
	program proof_check -cudart none "$tmp/proof_gemm.o" "$tmp/proof_check.o" -ldl
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
gencode
case $what in
lib) lib ;;
arm64) arm64 ;;
bench) lib; bench ;;
plain) plain ;;
check) lib; check ;;
ring) ring ;;
order) order ;;
proof) proof ;;
table) lib; measured >"$here/registers.txt" ;;
all) ring; order; proof; lib; check; bench; plain; arm64 ;;
*) echo "build.sh: unknown part $what" >&2; exit 1 ;;
esac
