//go:build unix

package main

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
)

// TestCPUAgreesWithTheSystem: the CPU time of a result is what the system says of the whole
// process, less what a process takes that measures nearly nothing.
func TestCPUAgreesWithTheSystem(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s := start(t, "serve", "--listen", "tcp://127.0.0.1:0")
	process := func(time string) (said, whole float64) {
		cmd := exec.CommandContext(t.Context(), self, "run", "--to", s.url, "--size", "1MiB", "--time", time, "--warmup", "0", "--json")
		cmd.Env = append(os.Environ(), asProgram+"=1")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, os.Stderr
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		r := parsed(t, out.String())
		sound(t, r)
		return r.Sender.CPU.seconds(), (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	}
	first, start := process("1ms")
	said, whole := process("2s")
	// The start is the same work, of which a busy host makes a little more or less.
	if rest, aside := whole-said, start-first; said > whole || rest > 0.05*whole+2*aside {
		t.Errorf("%.3f s in the result and %.3f s in all; the start takes %.3f s", said, whole, aside)
	} else {
		t.Logf("%.3f s in the result, %.3f s in all, %.3f s of them the start: %.3f", said, whole, aside, said/(whole-aside))
	}
}
