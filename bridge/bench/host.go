package bench

import (
	"context"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"time"
)

// Host is the machine that the benchmark itself runs on: where it is not the decoder's, its
// facts say nothing of the decoder.
type Host struct {
	System string `json:"system"` // of Go: linux, darwin
	Arch   string `json:"arch"`
	Name   string `json:"name,omitempty"` // of the processor, or the machine
	Cores  int    `json:"cores"`
	Memory uint64 `json:"memory_bytes,omitempty"` // 0: not known
}

// Sample is what a host says of heat and memory at a moment. What a system does not
// tell is zero.
type Sample struct {
	Available uint64 `json:"available_bytes,omitempty"` // memory that programs can have without swapping
	Swapped   uint64 `json:"swapped_bytes,omitempty"`   // memory that lies in swap

	// Throttled counts times that processors were slowed down because of heat, since the
	// start of the system; of two samples the difference counts.
	Throttled uint64 `json:"throttled,omitempty"`

	// Hot is what slows the machine down at this moment, in words: "CPU limited to 80 %", "GPU
	// 0 thermal slowdown"; empty: nothing is known to.
	Hot string `json:"hot,omitempty"`
}

// reading is what a system tells: a sample, and what of it is text of macOS's tools.
type reading struct {
	Sample
	vmStat, therm string
}

// toolTime bounds a program that tells facts.
const toolTime = 3 * time.Second

// maxTool is how much of its output is kept.
const maxTool = 64 << 10

// thisHost reads the facts of this machine.
func thisHost() Host {
	h := Host{System: runtime.GOOS, Arch: runtime.GOARCH, Cores: runtime.NumCPU()}
	h.Name, h.Memory = readHost()
	return h
}

// sample reads what the host says now. The context ends programs that are asked.
func sample(ctx context.Context) Sample {
	found := readSample(ctx)
	s := found.Sample
	if found.vmStat != "" {
		s.Available = macAvailable(found.vmStat)
	}
	if found.therm != "" {
		s.Hot = macHeat(found.therm)
	}
	if gpu := gpuHeat(tool(ctx, "nvidia-smi", "--format=csv,noheader",
		"--query-gpu=index,clocks_throttle_reasons.sw_thermal_slowdown,clocks_throttle_reasons.hw_thermal_slowdown,clocks_throttle_reasons.hw_power_brake_slowdown")); gpu != "" {
		s.Hot = strings.TrimPrefix(s.Hot+", "+gpu, ", ")
	}
	return s
}

// tool returns what a program prints; "" where there is none or it fails.
func tool(ctx context.Context, name string, args ...string) string {
	path, err := exec.LookPath(name)
	if err != nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, toolTime)
	defer cancel()
	c := exec.CommandContext(ctx, path, args...)
	c.WaitDelay = time.Second
	out, err := c.Output()
	if err != nil {
		return ""
	}
	return string(out[:min(len(out), maxTool)])
}

// gpuHeat reads nvidia-smi's table of why clocks are slowed.
func gpuHeat(text string) string {
	var hot []string
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.TrimSpace(line), ", ")
		if len(cells) != 4 {
			continue
		}
		for i, what := range []string{"thermal slowdown", "thermal slowdown by hardware", "power brake"} {
			if cells[i+1] == "Active" {
				hot = append(hot, short("GPU "+cells[0]+" "+what))
			}
		}
	}
	return strings.Join(hot, ", ")
}

// macHeat reads `pmset -g therm`: limits below 100, and warnings that were recorded.
func macHeat(text string) string {
	var hot []string
	for _, m := range regexp.MustCompile(`(?m)^\s*(CPU_Speed_Limit|CPU_Available_CPUs|GPU_Speed_Limit)\s*=\s*(\d+)`).FindAllStringSubmatch(text, -1) {
		if n, err := strconv.Atoi(m[2]); err == nil && strings.HasSuffix(m[1], "Speed_Limit") && n < 100 {
			hot = append(hot, m[1][:3]+" limited to "+m[2]+" %")
		}
	}
	for _, m := range regexp.MustCompile(`(?mi)^(?:Note: )?(thermal|performance|CPU power) warning level[^\n]*?(\d+)\s*$`).FindAllStringSubmatch(text, -1) {
		if m[2] != "0" {
			hot = append(hot, strings.ToLower(m[1])+" warning level "+m[2])
		}
	}
	return strings.Join(hot, ", ")
}

// macAvailable reads vm_stat: bytes of pages that are free or can be had at once.
func macAvailable(text string) uint64 {
	page := uint64(16384)
	if m := regexp.MustCompile(`page size of (\d+) bytes`).FindStringSubmatch(text); m != nil {
		if n, err := strconv.ParseUint(m[1], 10, 32); err == nil {
			page = n
		}
	}
	var pages uint64
	for _, m := range regexp.MustCompile(`(?m)^Pages (free|inactive|speculative|purgeable):\s+(\d+)\.`).FindAllStringSubmatch(text, -1) {
		if n, err := strconv.ParseUint(m[2], 10, 40); err == nil {
			pages += n
		}
	}
	return pages * page
}

// meminfo reads a line of /proc/meminfo, in bytes.
func meminfo(text, name string) uint64 {
	_, rest, ok := strings.Cut("\n"+text, "\n"+name+":")
	f := strings.Fields(rest)
	if !ok || len(f) == 0 {
		return 0
	}
	n, err := strconv.ParseUint(f[0], 10, 50)
	if err != nil {
		return 0
	}
	return n << 10
}
