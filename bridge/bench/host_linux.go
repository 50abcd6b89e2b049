package bench

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

func readHost() (name string, memory uint64) {
	cpu, _ := os.ReadFile("/proc/cpuinfo") // what cannot be read is not told
	for line := range strings.Lines(string(cpu)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			name = short(value)
			break
		}
	}
	if name == "" { // arm64 has the part's number only
		model, _ := os.ReadFile("/sys/firmware/devicetree/base/model") // likewise
		name = short(strings.TrimRight(string(model), "\x00\n"))
	}
	mem, _ := os.ReadFile("/proc/meminfo") // likewise
	return name, meminfo(string(mem), "MemTotal")
}

func readSample(context.Context) reading {
	mem, _ := os.ReadFile("/proc/meminfo") // what cannot be read is not told
	text := string(mem)
	var s reading
	s.Available = meminfo(text, "MemAvailable")
	if total, free := meminfo(text, "SwapTotal"), meminfo(text, "SwapFree"); total > free {
		s.Swapped = total - free
	}
	for _, pattern := range []string{"core_throttle_count", "package_throttle_count"} {
		files, _ := filepath.Glob("/sys/devices/system/cpu/cpu*/thermal_throttle/" + pattern) // the pattern is right
		for _, f := range files {
			s.Throttled += number(f)
		}
	}
	devices, _ := filepath.Glob("/sys/class/thermal/cooling_device*") // likewise
	var hot []string
	for _, d := range devices {
		kind, _ := os.ReadFile(filepath.Join(d, "type")) // likewise
		k := strings.TrimSpace(string(kind))
		if (k == "Processor" || strings.Contains(k, "cpufreq") || strings.Contains(k, "devfreq")) && number(filepath.Join(d, "cur_state")) > 0 {
			hot = append(hot, short(k)+" slowed by heat")
		}
	}
	s.Hot = strings.Join(hot, ", ")
	return s
}

// number reads a file that holds one.
func number(path string) uint64 {
	b, _ := os.ReadFile(path) // what cannot be read is not told
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}
