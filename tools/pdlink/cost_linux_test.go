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
	set("intel-rapl:1", "energy_uj", "no number")
	if j, ok := readEnergy(root).since(was); !ok || j != 2.5 {
		t.Errorf("%g J, %v", j, ok)
	}
}
