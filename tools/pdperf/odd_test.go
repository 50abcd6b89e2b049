package main

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestNoCombinationPanics runs command lines of flags that are right, at an edge or wrong,
// as they come: each ends with one of the statuses that are promised, and says something.
func TestNoCombinationPanics(t *testing.T) {
	values := map[string][]string{
		"--link": {"mem://", "mem://", "tcp://127.0.0.1:0", "unix:///none/socket", "tcp://"}, "--links": {"mem", "mem,floor", "floor", "tcp,mem"},
		"--size": {"8", "4104", "64KiB", "8,64KiB", "8..64", "7", "2GiB"}, "--frame": {"4KiB", "64KiB", "1MiB", "8MiB"}, "--model": {"none", ""},
		"--lanes": {"1", "1,2", "16", "1000000"}, "--in-flight": {"1", "1,2", "64", "65"}, "--direction": {"push", "pull", "both", "push,pull,both", "up"},
		"--buffers": {"0", "3", "9", "1000", "-1"}, "--warmup": {"0", "3ms"}, "--reps": {"1", "2"}, "--sum": {"", "none", "crc32c", "md5"},
		"--presummed": {"false", "true"}, "--ring": {"2", "16", "64"}, "--window": {"1", "2", "64"}, "--hold": {"0", "1", "15"},
		"--json": {"true"}, "--csv": {"true"}, "--benchstat": {"true"}, "--floor": {"true", "false"}, "--keys": {"true"}, "--encrypt": {"on", "off", "256"},
		"--at": {"127.0.0.1", "::1", "x y"},
	}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names) // the same in each run
	rng := rand.New(rand.NewPCG(7, 7))
	good := 0
	for range 30 {
		args := []string{"local", "--time", "4ms", "--warmup", "0", "--size", "64KiB", "--frame", "64KiB"}
		if rng.IntN(3) > 0 {
			args = append(args, "--link", "mem://")
		}
		for range rng.IntN(5) {
			name := names[rng.IntN(len(names))]
			args = append(args, name+"="+values[name][rng.IntN(len(values[name]))])
		}
		status, out, errOut := cli(t, args...)
		switch {
		case status == exitOK && out != "":
			good++
		case (status == exitFailed || status == exitUsage) && errOut != "":
		default:
			t.Errorf("%q: status %d, %q %q", args, status, out, errOut)
		}
		for _, word := range []string{"NaN", "%!", "goroutine", "nil pointer"} {
			if strings.Contains(out+errOut, word) {
				t.Errorf("%q: %s in\n%s%s", args, word, out, errOut)
			}
		}
	}
	if good < 5 {
		t.Errorf("only %d of them measured something", good)
	}
}
