# pdlink: build, test and measure. `make help` lists the targets; everything generated lies in .build/, which git ignores.
# The make of macOS (3.81) knows no .SHELLFLAGS: recipes say `set -e` and `set -o pipefail` themselves where they need it.
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

GO     ?= go
PYTHON ?= python3.11
BUILD  := $(CURDIR)/.build
BIN    := $(BUILD)/bin

# Versions of the tools, so that two machines find the same things. They are installed into .build/bin and kept there.
GOLANGCI_VERSION := 2.15.0
RUFF_VERSION     := 0.17.6

# A binary names its commit and version where there is a commit; an exported tree or a checkout of somebody else's builds
# without.
OURS    := $(shell git ls-files --error-unmatch Makefile >/dev/null 2>&1 && git rev-parse --verify HEAD 2>/dev/null)
VCS     := $(if $(OURS),auto,false)
VERSION := $(if $(OURS),$(shell git describe --tags --always --dirty),unknown)
LDFLAGS := -X main.version=$(VERSION)
GOBUILD  = CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=$(VCS) -ldflags '$(LDFLAGS)'
PROGRAMS := ./tools/pdlink ./tools/pdperf

# Both real ends are arm64; amd64 is where most of the tests run.
PLATFORMS := linux/amd64 linux/arm64 darwin/arm64

# Longest a package's tests may take before they count as hung.
TEST_TIMEOUT ?= 5m
# Under the race detector and under emulation everything is some 20 times slower.
SLOW_TIMEOUT ?= 10m
# Left out there: layers at a real model's size, which would take most of an hour. The small cases run the same code, with
# the same goroutines.
SLOW_SKIP ?= FullSize

# Time for each fuzz target, and for all of them together: with many targets each gets its share of the total.
FUZZTIME  ?= 10
FUZZTOTAL ?= 600

# Faults that `make faults` injects, a second each, and the longest that it may take.
FAULT_TRIES   ?= 200
FAULT_TIMEOUT ?= 20m
# Transfers of `make matrix` and the seed that draws their faults (empty: a new one), minutes of `make soak`.
RUNS    ?= 1000
SEED    ?=
MINUTES ?= 30

# Time for each benchmark, and which.
BENCHTIME ?= 1s
BENCH     ?= .
BENCHPKGS ?= ./...
# Longest that a package's benchmarks may take.
BENCH_TIMEOUT ?= 20m

# What runs on emulated arm64: the packages whose results are bits, because the compiler fuses multiply and add there.
QEMU     ?= $(firstword $(foreach q,qemu-aarch64-static qemu-aarch64,$(shell command -v $(q) 2>/dev/null)))
# Where its C library lies, which programs need that load libraries at run time (Debian: libc6-arm64-cross, which comes with
# g++-aarch64-linux-gnu).
ARM64ROOT ?= /usr/aarch64-linux-gnu
QEMUPKGS  ?= ./kernels/... ./transport/wire/... ./bridge/omlx

# Turns go test's events into its usual lines, and fails on a skipped test.
CHECK = $(BIN)/skips

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

.PHONY: build
build: ## the programs for this machine, .build/pdlink and .build/pdperf
	@mkdir -p $(BUILD)
	$(GOBUILD) -o $(BUILD)/ $(PROGRAMS)

.PHONY: dist
dist: LDFLAGS += -s -w
dist: ## the programs for all platforms, stripped, below .build/dist
	@set -e; for p in $(PLATFORMS); do \
		out=$(BUILD)/dist/$${p%/*}-$${p#*/}; \
		echo "build, $$p"; \
		rm -rf $$out; mkdir -p $$out; \
		GOOS=$${p%/*} GOARCH=$${p#*/} $(GOBUILD) -o $$out/ $(PROGRAMS); \
	done

.PHONY: demo
demo: build ## build, then send a real case over a link on this machine
	$(BUILD)/pdlink demo

.PHONY: test
test: $(CHECK) ## all Go tests; a skipped test is a failure
	set -o pipefail; $(GO) test -json -timeout $(TEST_TIMEOUT) ./... | $(CHECK)

.PHONY: race
race: $(CHECK) ## the same under the race detector
	set -o pipefail; CGO_ENABLED=1 $(GO) test -race -json -timeout $(SLOW_TIMEOUT) -skip '$(SLOW_SKIP)' ./... | $(CHECK)

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME seconds, all within FUZZTOTAL
	@GO='$(GO)' .ci/fuzz $(FUZZTIME) $(FUZZTOTAL)

.PHONY: faults
faults: $(CHECK) ## kill processes, cut connections, fill disks at FAULT_TRIES random points (Linux; root or user namespaces)
	set -o pipefail; PDLINK_FAULT_TRIES=$(FAULT_TRIES) $(GO) test -tags faults -json -count=1 -timeout $(FAULT_TIMEOUT) \
		-run '^Test(Faults|FullDisk|VerifyOnAFullDisk|ReadyOnAFullDisk|FileSizeLimit|Matrix|MatrixJobs|DropPackets|BreakCalls)$$' ./tools/pdlink | tee $(BUILD)/faults.json | $(CHECK)
	@grep -oE '(PDLINK_FAULT_SEED=|[0-9]+ tries; |[0-9]+ full disks, )[^\"]*' $(BUILD)/faults.json

.PHONY: matrix
matrix: ## RUNS transfers, each with a fault at a random stage, in clear and sealed (Linux; root or user namespaces; SEED=n repeats)
	PDLINK_MATRIX_RUNS=$(RUNS) PDLINK_MATRIX_SEED=$(SEED) $(GO) test -tags faults -v -count=1 -timeout 60m -run '^TestMatrix$$' ./tools/pdlink

.PHONY: soak
soak: ## eight transfers again and again for MINUTES, a fault every five seconds
	PDLINK_SOAK_MINUTES=$(MINUTES) $(GO) test -tags faults -v -count=1 -timeout 3h -run '^TestSoak$$' ./tools/pdlink

.PHONY: bench
bench: ## benchmarks only (BENCH=regexp BENCHTIME=1s BENCHPKGS=./...)
	$(GO) test -run '^$$' -bench '$(BENCH)' -benchtime $(BENCHTIME) -benchmem -timeout $(BENCH_TIMEOUT) $(BENCHPKGS)

.PHONY: bench-peers
bench-peers: build ## pdperf, its floor, iperf3, UCX, NIXL and Mooncake side by side, on loopback and a 10 Gbit/s cable (root; PEERS='-links 10g,1g -quiet 60s')
	$(GOBUILD) -o $(BUILD)/pdperf-peers ./tools/pdperf/peers
	@mkdir -p $(BUILD)/peers
	set -e; installed=0; PYTHON='$(PYTHON)' tools/pdperf/peers/setup.sh $(BUILD)/peers || installed=1; \
	$(BUILD)/pdperf-peers -dir $(BUILD)/peers -pdperf $(BUILD)/pdperf -links lo,10g -out $(BUILD)/peers/bench.jsonl $(PEERS); \
	exit $$installed

# What it was called when it measured TCP alone.
.PHONY: bench-tcp
bench-tcp: bench-peers

.PHONY: bench-links
bench-links: build ## what each link costs: loopback, and 1, 2.5, 10 Gbit/s at MTU 1500 and 9000, in clear, sealed and bare (root; 11 min; LINKS='-quiet 60s')
	@mkdir -p $(BUILD)/peers
	$(GOBUILD) -o $(BUILD)/pdperf-peers ./tools/pdperf/peers
	$(BUILD)/pdperf-peers -own -pdperf $(BUILD)/pdperf -links lo,10g,2.5g,1g -mtu 1500,9000 -sizes 16777216 -reps 5 -out $(BUILD)/peers/links.jsonl $(LINKS)

.PHONY: bench-store
bench-store: build ## the block store against raw writes, its tail, read-back, and behind a 10 Gbit/s link (root, fio)
	$(GO) test -run '^$$' -bench 'Store|Tail|ReadBack' -benchtime 20x -timeout $(BENCH_TIMEOUT) ./bridge/omlx
	tools/pdperf/peers/store.sh $(BUILD)/pdlink $(BUILD) 10gbit
	tools/pdperf/peers/store.sh $(BUILD)/pdlink $(BUILD) lo

.PHONY: bench-front
bench-front: ## what the front door adds to a warm request, and 64 streams through it against the decoder alone
	$(GO) test -run '^$$' -bench FrontWarm -benchtime 2000x ./bridge/front
	$(GO) test -run '^$$' -bench FrontStreams -benchtime 9x ./bridge/front

.PHONY: cuda
cuda: ## the CUDA projection for all GPUs, x86-64 and arm64, and what of its tests needs no GPU (nvcc from PATH or PyPI)
	kernels/cuda/build.sh '$(BUILD)/cuda' all
	GO='$(GO)' kernels/cuda/test.sh '$(BUILD)/cuda' host
	GO='$(GO)' QEMU='$(QEMU)' kernels/cuda/test.sh '$(BUILD)/cuda' arm64

.PHONY: cuda-test
cuda-test: ## on a GPU: against the reference, then under compute-sanitizer; without one it lists what was not run
	@set -e; for part in lib bench plain; do kernels/cuda/build.sh '$(BUILD)/cuda' $$part; done
	GO='$(GO)' kernels/cuda/test.sh '$(BUILD)/cuda' gpu
	GO='$(GO)' kernels/cuda/test.sh '$(BUILD)/cuda' sanitize

.PHONY: cuda-bench
cuda-bench: ## on a GPU: the projection against the bare matrix products and PyTorch, then six minutes of soak (PYTHON=one with torch)
	kernels/cuda/build.sh '$(BUILD)/cuda' bench
	PYTHON='$(PYTHON)' kernels/cuda/test.sh '$(BUILD)/cuda' bench
	kernels/cuda/test.sh '$(BUILD)/cuda' soak 6

.PHONY: lint
lint: lint-mod lint-go lint-vet lint-python ## go.mod, formatting, vet on all platforms, golangci-lint, ruff

.PHONY: lint-mod
lint-mod:
	$(GO) mod tidy -diff

.PHONY: lint-go
lint-go: $(BIN)/golangci-lint-$(GOLANGCI_VERSION)
	@set -e; bad=$$(find . -name '*.go' -not -path './.build/*' -print0 | xargs -0 gofmt -l); \
	if [ -n "$$bad" ]; then echo "not gofmt-formatted (run gofmt -w):"; echo "$$bad"; exit 1; fi
	@set -e; for tags in '' faults page cables; do echo "golangci-lint, $$tags"; $< run --build-tags "$$tags" ./...; done

.PHONY: lint-vet
lint-vet:
	@set -e; for p in $(PLATFORMS); do \
		for tags in '' faults page cables; do \
			echo "go vet, $$p $$tags"; \
			CGO_ENABLED=0 GOOS=$${p%/*} GOARCH=$${p#*/} $(GO) vet -tags "$$tags" ./...; \
		done; \
	done

.PHONY: lint-python
lint-python: $(BUILD)/ruff-$(RUFF_VERSION)/bin/ruff
	@find . -name '*.py' -not -path './.build/*' -print0 | xargs -0 $< check --no-cache --config .ci/ruff.toml

.PHONY: cross
cross: cross-build cross-static cross-qemu ## build programs and tests for all platforms, static ones, run the numeric and wire tests on emulated arm64

.PHONY: cross-build
cross-build:
	@set -e; for p in $(PLATFORMS); do \
		os=$${p%/*} arch=$${p#*/} out=$(BUILD)/cross/$${p%/*}-$${p#*/}; \
		echo "build and test binaries, $$p"; \
		rm -rf $$out; mkdir -p $$out/test; \
		GOOS=$$os GOARCH=$$arch $(GOBUILD) -o $$out/ $(PROGRAMS); \
		CGO_ENABLED=0 GOOS=$$os GOARCH=$$arch $(GO) test -c -o $$out/test/ ./...; \
	done

# With the tag nordma nothing is loaded at run time: programs for scratch images and musl.
.PHONY: cross-static
cross-static: $(CHECK)
	set -o pipefail; CGO_ENABLED=0 $(GO) test -tags static -json -count=1 -timeout $(SLOW_TIMEOUT) -run '^TestStatic' ./tools/pdlink | $(CHECK)

.PHONY: cross-qemu
cross-qemu: $(CHECK)
	@if [ -z '$(QEMU)' ]; then \
		echo "make cross: no qemu-aarch64 here: install qemu-user-static (Debian) or name one with QEMU=..." >&2; exit 1; fi
	set -o pipefail; CGO_ENABLED=0 GOOS=linux GOARCH=arm64 $(GO) test -json -timeout $(SLOW_TIMEOUT) \
		-exec '$(QEMU) -L $(ARM64ROOT)' -skip '$(SLOW_SKIP)' $(QEMUPKGS) | $(CHECK)

.PHONY: test-page
test-page: $(CHECK) ## the live page in a headless Chromium while transfers run (Debian: chromium; PDLINK_PAGE_SHOTS=DIR leaves pictures)
	set -o pipefail; $(GO) test -tags page -json -count=1 -timeout $(TEST_TIMEOUT) -run '^TestPage' ./tools/pdlink | $(CHECK)

.PHONY: test-links
test-links: $(CHECK) ## real links with a rate, loss and delay in network namespaces: what the kernel sees of them, why they are slow, compression (Linux, root)
	set -o pipefail; $(GO) test -tags cables -json -count=1 -p 1 -timeout $(TEST_TIMEOUT) ./tools/pdperf/flow/... ./tools/pdperf/why ./tools/pdperf/packtest | $(CHECK)

.PHONY: test-decoder
test-decoder: build ## does a real decoder adopt our blocks, by itself and by our plug-in? (installs one into .build/testdecoder on the first run)
	PYTHON='$(PYTHON)' bridge/omlx/testdecoder/run.sh $(BUILD)
	PYTHON='$(PYTHON)' bridge/omlx/plugin/tests/decoder/run.sh $(BUILD)

.PHONY: test-python
test-python: ## types, unit tests and wheels of the Python packages
	PYTHON='$(PYTHON)' bridge/vllm/tests/check.sh $(BUILD)
	cd bridge/omlx/plugin && PYTHONDONTWRITEBYTECODE=1 && export PYTHONDONTWRITEBYTECODE && \
		$(BUILD)/vllm/checks/bin/python -m mypy --cache-dir $(BUILD)/vllm/mypy && \
		$(BUILD)/vllm/checks/bin/python -m pytest -p no:cacheprovider tests/unit
	PYTHON='$(PYTHON)' tools/e2e/check.sh $(BUILD)

.PHONY: e2e
e2e: build ## requests through all of pdlink with real engines: vLLM, oMLX, SDK clients (installs them on the first run)
	PYTHON='$(PYTHON)' tools/e2e/run.sh $(BUILD)

.PHONY: e2e-full
e2e-full: build ## the same with odd requests and with faults: TP=2, namespaces, killed processes, cut links (root; ARMS="tp2 four")
	PYTHON='$(PYTHON)' tools/e2e/run.sh $(BUILD) full $(ARMS)

.PHONY: e2e-cost
e2e-cost: build ## what a bridged request costs beyond the engine's own time, and its tail over a 10 Gbit/s link (root; COST='--parts tail')
	PYTHON='$(PYTHON)' tools/e2e/cost.sh $(BUILD) $(COST)

.PHONY: e2e-bench
e2e-bench: build ## pdlink bench with real engines: what it reports is what happened (MEASURE='--runs 3 --tokens 700,1500')
	PYTHON='$(PYTHON)' tools/e2e/bench.sh $(BUILD) $(MEASURE)

.PHONY: test-vllm
test-vllm: ## the connector in real vLLM engines on this CPU (installs them; some ten minutes; VERSIONS=0.32.0 is shorter)
	PYTHON='$(PYTHON)' bridge/vllm/tests/engine/run.sh $(BUILD) $(VERSIONS)

# What runs in the machines of test-rdma: each package in one of its own, with two processors; faults and figures in one whose
# clock counts instructions, so that they come out the same on a busy host. The longest that one machine may take.
RDMAPKGS   ?= ./rdma/vmtest ./rdma/internal/verbs ./rdma/linktest
RDMASTEADY ?= TestVMFaults|TestVMRefuse|TestVMGoodput
RDMALIMIT  ?= 15m
RDMAEXEC    = $(BUILD)/rdma/vmtest exec -cache $(BUILD)/rdma -limit $(RDMALIMIT) -log $(BUILD)/rdma/console -add $(BUILD)/pdlink -add $(BUILD)/pdperf
RDMATEST    = CGO_ENABLED=0 $(GO) test -tags rdmavm -count=1 -p 1 -timeout $(RDMALIMIT)
# Faults there; a long run is `make faults-rdma`. Rounds of each figure there: of one, only a collapse fails; `make bench-rdma` takes five
# and judges.
RDMAFAULTS ?= 20
RDMAROUNDS ?= 1
# Faults of one machine of faults-rdma.
RDMABATCH  ?= 50
# The tests that fail when no compiler for arm64 is here name it.
VERBS_CC   ?= gcc,aarch64-linux-gnu-gcc

# Cases that handover-rdma hands over.
GOLDEN     ?= bundled:kv-qwen3 bundled:dsv4-a bundled:dsv4-b synthetic:deepseek-v4-flash:8192

.PHONY: vmtest
vmtest: build
	@mkdir -p $(BUILD)/rdma
	@CGO_ENABLED=0 $(GO) build -buildvcs=false -o $(BUILD)/rdma/vmtest ./rdma/vmtest

.PHONY: test-rdma
test-rdma: vmtest $(CHECK) ## RDMA: struct layouts against the C headers, then on real devices in virtual machines (Debian; needs qemu-system-x86 and xz-utils)
	set -o pipefail; include=$$($(BUILD)/rdma/vmtest headers -cache $(BUILD)/rdma); { \
		CGO_ENABLED=0 VERBS_INCLUDE=$$include VERBS_CC=$(VERBS_CC) $(GO) test -tags verbsabi -json -count=1 -timeout $(TEST_TIMEOUT) ./rdma/internal/verbs; \
		$(RDMATEST) -json -run '^TestVM' -skip '^($(RDMASTEADY))$$' -exec '$(RDMAEXEC)' $(RDMAPKGS); \
		$(RDMATEST) -json -run '^($(RDMASTEADY))$$' \
			-exec '$(RDMAEXEC) -steady 1 -env RDMA_FAULTS=$(RDMAFAULTS) -env RDMA_SEED=$(SEED) -env RDMA_ROUNDS=$(RDMAROUNDS)' ./rdma/vmtest; \
	} | $(CHECK)

.PHONY: faults-rdma
faults-rdma: RUNS = 300
faults-rdma: RDMALIMIT = 1h
faults-rdma: vmtest ## RUNS transfers over RDMA in virtual machines, each with a random fault (SEED=n repeats)
	@mkdir -p $(BUILD)/rdma/faults; rm -f $(BUILD)/rdma/faults/*; bad=0; \
	seed='$(SEED)'; seed=$${seed:-$$(($$(date +%s) % 1000000))}; \
	for first in $$(seq 0 $(RDMABATCH) $$(($(RUNS) - 1))); do \
		left=$$(($(RUNS) - first)); n=$$((left < $(RDMABATCH) ? left : $(RDMABATCH))); log=$(BUILD)/rdma/faults/$$first; \
		echo "faults $$first to $$((first + n - 1)), SEED=$$seed"; \
		$(RDMATEST) -v -run '^TestVMFaults$$' \
			-exec "$(RDMAEXEC) -steady 1 -env RDMA_FAULTS=$$n -env RDMA_FIRST=$$first -env RDMA_SEED=$$seed" ./rdma/vmtest >$$log 2>&1 || { \
			bad=1; cat $$log; }; \
		grep -E '^ *faults_test.go:[0-9]+: transfers over' $$log || bad=1; \
		echo "$$(grep -c '^ *--- PASS: TestVMFaults/' $$log) transfers passed, $$(grep -c '^ *--- FAIL: TestVMFaults/' $$log) failed"; \
	done; exit $$bad

.PHONY: bench-rdma
bench-rdma: vmtest ## pdperf beside ib_write_bw in a virtual machine whose clock counts instructions, five rounds of each figure
	$(RDMATEST) -v -run '^TestVMGoodput$$' -exec '$(RDMAEXEC) -steady 1 -env RDMA_ROUNDS=5' ./rdma/vmtest

.PHONY: bench-links-rdma
bench-links-rdma: vmtest ## the links of bench-links and RDMA side by side, in a virtual machine whose clock counts instructions
	$(BUILD)/rdma/vmtest run -cache $(BUILD)/rdma -limit $(RDMALIMIT) -steady 1 -add $(BUILD)/pdperf -- \
		'./pdperf local --links tcp,tcp+tls,rdma,rdma+tls,mem --at $$RDMA_IP_A --size 1MiB --time 1s --warmup 200ms --reps 3'

# Another --at and hosts with RDMA: `pdperf handover` itself.
.PHONY: handover-rdma
handover-rdma: vmtest ## what handing a prompt's blocks over costs over memory, TCP and RDMA, in a virtual machine whose clock counts instructions
	$(BUILD)/rdma/vmtest run -cache $(BUILD)/rdma -limit $(RDMALIMIT) -steady 1 -add $(BUILD)/pdlink -add $(BUILD)/pdperf -- \
		'for how in on off; do ./pdperf handover $(GOLDEN) --at $$RDMA_IP_A --runs 3 --encrypt $$how; done'

.PHONY: clean
clean: ## remove everything generated, tools and test decoder included
	rm -rf $(BUILD)

# Tools.

$(CHECK): $(wildcard tools/archtest/skips/*.go) go.mod
	@mkdir -p $(BIN)
	@CGO_ENABLED=0 $(GO) build -buildvcs=false -o $@ ./tools/archtest/skips

# Built under a name with its version, so that a new pin is a new file.
$(BIN)/golangci-lint-$(GOLANGCI_VERSION):
	@mkdir -p $(BIN)
	CGO_ENABLED=0 GOFLAGS= GOBIN=$(BIN) $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI_VERSION)
	@mv $(BIN)/golangci-lint $@

$(BUILD)/ruff-$(RUFF_VERSION)/bin/ruff:
	@rm -rf $(BUILD)/ruff-$(RUFF_VERSION)
	@$(PYTHON) -m venv $(BUILD)/ruff-$(RUFF_VERSION)
	@$(@D)/python -m pip install --quiet --disable-pip-version-check ruff==$(RUFF_VERSION)
