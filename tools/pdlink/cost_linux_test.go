package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestEnergy: packages, not their parts, and a counter that begins again.
func TestEnergy(t *testing.T) {
	root := t.TempDir()
	set := func(zone, file, value string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(root, zone), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, zone, file), []byte(value+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if readEnergy(root) != nil {
		t.Error("there is no counter")
	}
	if _, ok := readEnergy(root).since(nil); ok {
		t.Error("nothing was counted")
	}
	set("intel-rapl:0", "energy_uj", "1000000")
	set("intel-rapl:0", "max_energy_range_uj", "10000000")
	set("intel-rapl:1", "energy_uj", "9000000")
	set("intel-rapl:1", "max_energy_range_uj", "10000000")
	set("intel-rapl:0:0", "energy_uj", "1")
	was := readEnergy(root)
	set("intel-rapl:0", "energy_uj", "3500000")
	set("intel-rapl:1", "energy_uj", "500000") // 1.5 J later
	set("intel-rapl:0:0", "energy_uj", "900000000")
	if j, ok := readEnergy(root).since(was); !ok || j != 4 {
		t.Errorf("%g J, %v", j, ok)
	}
	for zone, name := range map[string]string{"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram", "intel-rapl:2": "psys"} {
		set(zone, "name", name+"\n")
	}
	set("intel-rapl:0:1", "energy_uj", "250000") // the memory is no part of its package
	set("intel-rapl:2", "energy_uj", "99000000") // all of them are parts of the board
	beside := readEnergy(root)
	set("intel-rapl:0:1", "energy_uj", "750000")
	set("intel-rapl:2", "energy_uj", "199000000")
	if j, ok := readEnergy(root).since(beside); !ok || j != 0.5 {
		t.Errorf("with memory and board: %g J, %v", j, ok)
	}
	if err := os.RemoveAll(filepath.Join(root, "intel-rapl:0:1")); err != nil {
		t.Fatal(err)
	}
	set("intel-rapl:1", "energy_uj", "no number")
	if j, ok := readEnergy(root).since(was); !ok || j != 2.5 {
		t.Errorf("%g J, %v", j, ok)
	}
}
