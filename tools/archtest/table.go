package archtest

import "maps"

// Dependencies that several packages have, and why.
const (
	xxh3Why   = "the fastest checksum that both ends have, for pieces"
	sysWhy    = "system calls and constants that the standard library does not have"
	syncWhy   = "errgroup and semaphore"
	xxh3      = "github.com/zeebo/xxh3"
	unix      = "golang.org/x/sys/unix"
	errgroup  = "golang.org/x/sync/errgroup"
	semaphore = "golang.org/x/sync/semaphore"

	plots      = "gonum.org/v1/plot"
	prometheus = "github.com/prometheus/client_golang/prometheus"
)

// sockets are what packages that know only files and numbers have no use for.
func sockets() []string { return []string{"net", "net/http", "os/exec"} }

// pdlinkImports is the import table: one entry a package, arrows pointing down only.
func pdlinkImports() map[string]Imports {
	table := linkImports()
	maps.Copy(table, rdmaImports())
	maps.Copy(table, productImports())
	maps.Copy(table, shownImports())
	maps.Copy(table, toolImports())
	maps.Copy(table, perfImports())
	return table
}

// linkImports is the part that moves bytes.
func linkImports() map[string]Imports {
	return map[string]Imports{
		"transport":          {Modules: map[string]string{xxh3: xxh3Why}},
		"transport/wire":     {Internal: []string{"transport"}, Modules: map[string]string{xxh3: xxh3Why}},
		"transport/keys":     {Modules: map[string]string{unix: sysWhy}, Tests: []string{"transport/seal"}},
		"transport/seal":     {Internal: []string{"transport", "transport/wire"}, NoStd: sockets()},
		"transport/session":  {Internal: []string{"transport", "transport/wire"}, Tests: []string{"transport/mem", "transport/transporttest"}},
		"transport/failover": {Internal: []string{"transport"}, NoStd: sockets()},
		"transport/mem": {
			Internal: []string{"transport", "transport/wire", "transport/session"},
			Modules:  map[string]string{unix: sysWhy},
			Tests:    []string{"transport/transporttest"},
		},
		"transport/transporttest": {
			Internal: []string{"transport", "transport/wire", "transport/session"},
			Modules:  map[string]string{"go.uber.org/goleak": "the suite's leak check", xxh3: "the peer that the suite plays signs its own pieces"},
			Tests:    []string{"transport/mem"},
		},
		"transport/codec": {
			Modules: map[string]string{
				"github.com/pierrec/lz4/v4":           "LZ4, for payloads that repeat themselves",
				"github.com/klauspost/compress/huff0": "Huffman codes, for the exponents of numbers",
			},
			NoStd: sockets(),
		},
		"transport/carrier": {Internal: []string{"transport", "transport/session", "transport/seal"}},
		"tcp": {
			Internal: []string{
				"transport", "transport/wire", "transport/session", "transport/keys", "transport/seal", "transport/carrier", "transport/codec",
			},
			Modules: map[string]string{unix: sysWhy},
			Tests:   []string{"transport/transporttest"},
		},
	}
}

// rdmaImports is the link over RDMA.
func rdmaImports() map[string]Imports {
	return map[string]Imports{
		"rdma": {
			Internal: []string{
				"transport", "transport/wire", "transport/session", "transport/seal", "transport/carrier", "rdma/internal/verbs",
			},
			Modules: map[string]string{
				"github.com/Mellanox/rdmamap":    "which RDMA device a network interface has",
				"github.com/vishvananda/netlink": "the state of the interface",
			},
			Tests: []string{"rdma/internal/fakeverbs"},
		},
		"rdma/internal/fakeverbs": {Internal: []string{"transport", "rdma/internal/verbs"}},
		"rdma/internal/verbs": {
			Internal: []string{"transport"},
			Modules: map[string]string{
				"github.com/ebitengine/purego": "calls libibverbs and librdma without cgo, where the machine has them",
				unix:                           sysWhy,
			},
		},
		"rdma/vmtest": {Modules: map[string]string{unix: sysWhy}},
		"rdma/linktest": {
			Tests: []string{
				"transport", "transport/wire", "transport/session", "transport/seal", "transport/keys", "transport/carrier",
				"transport/failover", "transport/transporttest", "tcp", "rdma", "rdma/internal/fakeverbs", "rdma/internal/verbs",
			},
		},
	}
}

// productImports is the part that knows what the bytes mean.
func productImports() map[string]Imports {
	return map[string]Imports{
		"kernels/safetensors": {NoStd: sockets()},
		"kernels":             {Internal: []string{"kernels/safetensors"}, NoStd: sockets()},
		"kernels/cuda": {
			Internal: []string{"kernels"},
			Modules:  map[string]string{"github.com/ebitengine/purego": "calls libpdproj without cgo, where the machine has it"},
			Tests:    []string{"kernels/safetensors"},
			NoStd:    sockets(),
		},
		"kernels/verify": {Internal: []string{"kernels", "kernels/cuda", "kernels/safetensors"}, NoStd: sockets()},
		"bridge/omlx": {
			Internal: []string{"kernels", "kernels/safetensors"},
			Modules:  map[string]string{unix: sysWhy},
			NoStd:    sockets(),
		},
		"bridge": {
			Internal: []string{"transport", "kernels"},
			Modules:  map[string]string{errgroup: syncWhy, semaphore: syncWhy},
			Tests: []string{
				"transport/mem", "transport/session", "transport/wire", "transport/transporttest", "transport/failover",
				"bridge/omlx", "kernels/safetensors",
			},
		},
		"bridge/facts":       {NoStd: sockets()},
		"bridge/omlx/plugin": {Internal: []string{"bridge/facts", "bridge/omlx", "kernels/safetensors"}, NoStd: []string{"net", "os/exec"}},
		"bridge/front": {
			Internal: []string{"transport", "bridge/facts", "bridge/omlx", "bridge/omlx/plugin", "bridge/prefill/calls"},
			Modules:  map[string]string{semaphore: syncWhy},
			Tests:    []string{"transport/mem"},
		},
		"bridge/prefill/calls": {Internal: []string{"transport", "bridge/facts"}, NoStd: sockets()},
		"bridge/prefill": {
			Internal: []string{"transport", "bridge", "bridge/facts", "bridge/omlx", "bridge/prefill/calls", "kernels", "kernels/safetensors"},
			Modules:  map[string]string{unix: sysWhy, xxh3: "records in shared memory carry a sum"},
			Tests:    []string{"transport/mem", "transport/session", "bridge/replay", "bridge/front"},
		},
		"bridge/replay": {
			Internal: []string{"transport", "bridge", "bridge/omlx", "kernels", "kernels/safetensors"},
			Modules:  map[string]string{errgroup: syncWhy},
			Tests:    []string{"transport/mem", "transport/session", "transport/wire"},
		},
	}
}

// shownImports is what shows people what the bridge does and costs.
func shownImports() map[string]Imports {
	return map[string]Imports{
		"bridge/trace": {
			Internal: []string{"transport", "transport/session", "bridge"},
			Tests:    []string{"transport/mem"},
			NoStd:    sockets(),
		},
		"bridge/bench": {
			Internal: []string{"bridge/omlx/plugin"},
			Modules:  map[string]string{unix: "facts of a Mac"},
			Tests:    []string{"bridge/omlx"},
		},
		"bridge/watch": {Internal: []string{"transport", "bridge"}, Tests: []string{"transport/mem", "transport/session", "transport/transporttest"}, NoStd: sockets()},
		"bridge/watch/metrics": {
			Internal: []string{"bridge/watch"},
			Modules: map[string]string{
				prometheus:                 "figures, and their format",
				prometheus + "/collectors": "figures of the process and of Go's runtime",
				prometheus + "/promhttp":   "what Prometheus asks for over HTTP",
			},
			NoStd: []string{"net", "os/exec"},
		},
		"bridge/watch/pages": {Internal: []string{"bridge/watch"}},
		"bridge/cost":        {NoStd: sockets()},
		"bridge/cost/page": {
			Internal: []string{"bridge/cost"},
			Modules: map[string]string{
				plots: "plots with axes, ticks and legends", plots + "/plotter": "lines, dots and grids", plots + "/vg": "the lengths of plots",
				plots + "/vg/draw": "the form of dots", plots + "/vg/vgsvg": "the same as SVG, which a page can hold",
			},
			NoStd: sockets(),
		},
	}
}

// toolImports is the programs and what belongs to them.
func toolImports() map[string]Imports {
	return map[string]Imports{
		"tools/pdlink": {
			Internal: []string{
				"transport", "transport/wire", "transport/session", "transport/mem", "tcp", "rdma",
				"bridge", "bridge/omlx", "bridge/replay", "kernels", "kernels/cuda", "kernels/safetensors", "kernels/verify", "transport/keys", "transport/failover",
				"bridge/facts", "bridge/front", "bridge/omlx/plugin", "bridge/prefill", "bridge/prefill/calls", "tools/linkkeys",
				"bridge/bench", "bridge/cost", "bridge/cost/page", "tools/pdperf/stats", "bridge/trace", "bridge/watch", "bridge/watch/metrics", "bridge/watch/pages",
				"tools/cmdline", "tools/services",
			},
			Modules: map[string]string{
				"github.com/spf13/cobra":            "commands, flags and their help",
				"github.com/schollz/progressbar/v3": "a bar while blocks travel, on terminals",
				"github.com/fatih/color":            "verdicts stand out, on terminals",
				"golang.org/x/term":                 "is the output a terminal?",
				errgroup:                            syncWhy,
				semaphore:                           syncWhy,
				unix:                                sysWhy,
			},
			Tests: []string{"transport/transporttest"},
		},
		"tools/cmdline": {
			Modules: map[string]string{
				"github.com/spf13/cobra":                   "commands, flags, their help and completions",
				"github.com/spf13/pflag":                   "the flags themselves, for values that are not on the command line",
				"github.com/pelletier/go-toml/v2":          "the config file",
				"github.com/pelletier/go-toml/v2/unstable": "how many values it has, before they are read",
			},
			NoStd: sockets(),
		},
		"tools/services": {NoStd: sockets()},
		"tools/linkkeys": {
			Internal: []string{"transport", "transport/codec", "transport/keys", "transport/seal", "transport/wire", "tools/cmdline"},
			Modules:  map[string]string{"github.com/spf13/cobra": "flags, their help and completions"},
		},
		"tools/archtest":       {},
		"tools/archtest/skips": {},
	}
}

// perfImports is what measures.
func perfImports() map[string]Imports {
	return map[string]Imports{
		"tools/pdperf": {
			Internal: []string{
				"transport", "transport/wire", "transport/session", "transport/mem", "tcp", "rdma", "bridge/omlx", "bridge/replay",
				"tools/linkkeys", "tools/cmdline", "tools/pdperf/stats", "tools/pdperf/faultproxy", "tools/pdperf/host", "tools/pdperf/flow",
				"tools/pdperf/why",
			},
			Modules: map[string]string{
				"github.com/spf13/cobra": "commands, flags and their help", "golang.org/x/term": "is somebody watching the progress?",
				errgroup: syncWhy, unix: sysWhy,
			},
		},
		"tools/pdperf/host": {
			Modules: map[string]string{unix: sysWhy, "github.com/vishvananda/netlink": "what a token bucket lets out of an interface"},
			NoStd:   []string{"net/http", "os/exec"},
		},
		"tools/pdperf/flow": {
			Modules: map[string]string{
				"github.com/cilium/ebpf":        "programs in the kernel that see what happens to a flow",
				"github.com/cilium/ebpf/asm":    "their instructions: no compiler where they are built or run",
				"github.com/cilium/ebpf/btf":    "where the running kernel has the fields that they read",
				"github.com/cilium/ebpf/link":   "puts them to tracepoints and cgroups",
				"github.com/cilium/ebpf/rlimit": "memory for them on kernels before 5.11",
				unix:                            sysWhy,
			},
			Tests: []string{"tools/pdperf/flow/cable"},
			NoStd: sockets(),
		},
		"tools/pdperf/flow/cable": {
			Modules: map[string]string{
				"github.com/cilium/ebpf":         "loses packets",
				"github.com/cilium/ebpf/asm":     "the same",
				"github.com/cilium/ebpf/link":    "the same",
				"github.com/vishvananda/netlink": "devices and their rates",
				unix:                             sysWhy,
			},
		},
		"tools/pdperf/why": {
			Internal: []string{"tools/pdperf/flow"},
			Modules:  map[string]string{unix: "cores and disks of test beds"},
			Tests: []string{
				"bridge", "bridge/trace", "tcp", "tools/linkkeys", "tools/pdperf/flow/cable", "transport", "transport/keys",
				"transport/seal", "transport/session",
			},
			NoStd: sockets(),
		},
		"tools/pdperf/packtest": {
			Tests: []string{
				"tcp", "tools/linkkeys", "tools/pdperf/flow/cable", "transport", "transport/codec", "transport/keys", "transport/seal",
			},
		},
		"tools/pdperf/stats": {
			Modules: map[string]string{"github.com/HdrHistogram/hdrhistogram-go": "percentiles of block times in bounded memory"}, NoStd: sockets(),
		},
		"tools/pdperf/faultproxy": {},
		"tools/pdperf/peers":      {Internal: []string{"tools/linkkeys", "tools/pdperf/stats"}},
	}
}
