package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// raplRoot is where Linux shows the energy counters of processor packages.
const raplRoot = "/sys/class/powercap"

// energy is a reading of the host's energy counters.
type energy map[string]float64 // joules by counter

// readEnergy reads the counters of the processors' packages below root and of the memory
// beside them, and that of the whole board, which contains both, only where there is no
// other; nil where there are none that this user may read.
func readEnergy(root string) energy {
	zones, _ := filepath.Glob(filepath.Join(root, "intel-rapl:[0-9]*")) // the pattern is right
	parts, board := energy{}, energy{}
	for _, z := range zones {
		name, _ := os.ReadFile(filepath.Join(z, "name")) // else it is a package's
		to := parts
		switch kind := strings.TrimSpace(string(name)); {
		case kind == "psys":
			to = board
		case strings.Count(filepath.Base(z), ":") > 1 && kind != "dram":
			continue // a part of a package
		}
		if v, ok := readMicro(filepath.Join(z, "energy_uj")); ok {
			to[z] = v
		}
	}
	switch {
	case len(parts) > 0:
		return parts
	case len(board) > 0:
		return board
	}
	return nil
}

// readMicro reads a number of millionths.
func readMicro(path string) (float64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	v, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return float64(v) / 1e6, err == nil
}

// since is how many joules the packages took since an earlier reading; false where that is
// not known.
func (e energy) since(was energy) (joules float64, ok bool) {
	for z, v := range e {
		before, there := was[z]
		if !there {
			return 0, false
		}
		if v < before { // it began again at 0
			most, ok := readMicro(filepath.Join(z, "max_energy_range_uj"))
			if !ok {
				return 0, false
			}
			v += most
		}
		joules += v - before
	}
	return joules, len(e) > 0
}
