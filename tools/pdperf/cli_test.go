package main

import (
	"context"
	"errors"
	"math"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"pdlink/tools/cmdline"
	"pdlink/tools/linkkeys"
)

// quick adds flags that make a run short and its blocks small, behind the
// command and before what the caller wants otherwise.
func quick(command string, args ...string) []string {
	return append([]string{command, "--size", "520kB", "--frame", "64KiB", "--time", "150ms", "--warmup", "30ms"}, args...)
}

// sound checks what every good result has.
func sound(t *testing.T, r result) {
	t.Helper()
	if !r.OK || r.Why != "" || r.Schema != schemaName || r.Version == "" || r.Interrupted {
		t.Errorf("%+v", r)
	}
	if r.Blocks == 0 || r.Bytes != r.Blocks*uint64(r.BlockBytes) || r.Seconds <= 0 {
		t.Errorf("%d blocks, %d bytes, %v s", r.Blocks, r.Bytes, r.Seconds)
	}
	if got := float64(r.Bytes) / r.Seconds / 1e9; math.Abs(r.Goodput-got) > got/1000+1e-6 {
		t.Errorf("goodput %v, want %v", r.Goodput, got)
	}
	if b := r.BlockMs; !(0 < b.P50 && b.P50 <= b.P90 && b.P90 <= b.P99 && b.P99 <= b.P999 && b.P999 <= b.Max && b.Max <= r.Seconds*1e3+1e-3) { // seconds are rounded
		t.Errorf("block times %+v", b)
	}
	for _, e := range []endResult{r.Sender, r.Receiver} {
		if e.Buffers < 1 || e.Buffers > e.Owned || e.Cores < 1 || e.Platform == "" || e.Buffer < 1 {
			t.Errorf("end %+v", e)
		}
		if e.Host.Kernel == "" || !strings.HasPrefix(e.Host.Go, "go") {
			t.Errorf("host %+v", e.Host)
		}
	}
}

func TestLocal(t *testing.T) {
	for _, link := range []string{"mem://", "tcp://127.0.0.1:0"} {
		for _, presummed := range []bool{true, false} {
			t.Run(link+" "+strconv.FormatBool(presummed), func(t *testing.T) {
				r := measured(t, quick("local", "--link", link, "--presummed="+strconv.FormatBool(presummed))...)
				sound(t, r)
				perBlock := uint64(520_000+65_535) / 65_536
				if r.Program != "pdperf" || r.Link != schemeOf(link) || r.Presummed != presummed || r.Sum == "none" ||
					r.Verified != r.Bytes || r.Bad != 0 || r.Resent != 0 || r.Frames != r.Blocks*perBlock {
					t.Errorf("%+v", r)
				}
				// Every buffer of the sender has its turn.
				if n := int(min(r.Frames, uint64(r.Sender.Owned))); r.Sender.Buffers != n || r.Sender.Owned != 8*int(perBlock) {
					t.Errorf("sender %+v, want %d buffers", r.Sender, n)
				}
				if r.Receiver.Window != 16 || r.Receiver.Owned != 64 {
					t.Errorf("receiver %+v", r.Receiver)
				}
				if one := r.Processes == 1; one != (link == "mem://") || one != (r.Both != nil) || one != (r.Sender.CPU == nil) || one != (r.Receiver.CPU == nil) {
					t.Errorf("%d processes, CPU %v, %v, %v", r.Processes, r.Both, r.Sender.CPU, r.Receiver.CPU)
				}
			})
		}
	}
}

func TestHeldFramesUseMoreOfTheRing(t *testing.T) {
	few := measured(t, quick("local", "--link", "mem://", "--window", "8")...)
	many := measured(t, quick("local", "--link", "mem://", "--window", "40", "--hold", "32")...)
	sound(t, few)
	sound(t, many)
	if few.Receiver.Buffers > 16 || many.Receiver.Buffers < 33 || many.Receiver.Window != 8 {
		t.Errorf("%d buffers without holding, %d with 32 frames held (%+v)", few.Receiver.Buffers, many.Receiver.Buffers, many.Receiver)
	}
}

func TestServeAndRun(t *testing.T) {
	s := start(t, "serve", "--listen", "tcp://127.0.0.1:0", "--frame", "64KiB")
	for _, c := range []struct {
		args  []string
		check func(result) bool
	}{
		{[]string{"--lanes", "3", "--in-flight", "6"}, func(r result) bool { return r.Lanes == 3 && r.InFlight == 6 && r.Sender.Owned == 13*8 }},
		{[]string{"--sum", "crc32c"}, func(r result) bool { return r.Sum == "crc32c" && r.Verified == r.Bytes }},
		{[]string{"--in-flight", "1", "--warmup", "0"}, func(r result) bool { return r.Warmup == 0 }},
		{[]string{"--size", "8", "--time", "50ms"}, func(r result) bool { return r.Frames == r.Blocks && r.BlockBytes == 8 }},
	} {
		r := measured(t, quick("run", append(c.args, "--to", s.url)...)...)
		sound(t, r)
		if !c.check(r) || r.Processes != 2 || r.Link != "tcp" {
			t.Errorf("%v: %+v", c.args, r)
		}
	}
	if status := s.stop(); status != exitOK {
		t.Errorf("serve ended with status %d: %s", status, s.err.String())
	}
	// A warm-up is a transfer too.
	if n := s.count("transfer"); n != 7 {
		t.Errorf("%d transfers told of, want 7", n)
	}
}

func TestWithoutChecksum(t *testing.T) {
	r := measured(t, quick("local", "--sum", "none")...)
	sound(t, r)
	if r.Sum != "none" || r.Verified != 0 {
		t.Errorf("%+v", r)
	}
	status, out, _ := cli(t, quick("local", "--sum", "none")...)
	if status != exitOK || !strings.Contains(out, "NOT VERIFIED") {
		t.Errorf("status %d: %s", status, out)
	}
	// One end alone cannot turn it off.
	s := start(t, "serve", "--listen", "tcp://127.0.0.1:0", "--frame", "64KiB")
	if status, out, errOut := cli(t, quick("run", "--to", s.url, "--sum", "none")...); status != exitFailed {
		t.Errorf("none against a verifying end: status %d\n%s%s", status, out, errOut)
	}
}

func TestFloor(t *testing.T) {
	for _, extra := range [][]string{nil, {"--in-flight", "1", "--warmup", "0", "--recv-frames", "3"}} {
		r := measured(t, quick("floor", extra...)...)
		sound(t, r)
		if r.Program != "floor" || r.Sum != "none" || r.Verified != 0 || r.Processes != 2 || r.Sender.CPU == nil || r.Receiver.CPU == nil {
			t.Errorf("%+v", r)
		}
	}
	f := start(t, "floor", "--listen", "tcp://127.0.0.1:0")
	r := measured(t, quick("floor", "--to", f.url)...)
	sound(t, r)
	if status := f.wait(); status != exitOK {
		t.Errorf("the receiving end: status %d: %s", status, f.err.String())
	}
}

func TestText(t *testing.T) {
	for _, args := range [][]string{quick("local"), quick("local", "--link", "mem://"), quick("floor")} {
		status, out, errOut := cli(t, args...)
		if status != exitOK || errOut != "" {
			t.Fatalf("%v: status %d: %s%s", args, status, out, errOut)
		}
		for _, word := range []string{"goodput", "GB/s", "p50", "p99", "s/GB", "buffers", "first byte to last acknowledgement"} {
			if !strings.Contains(out, word) {
				t.Errorf("%v: no %q in\n%s", args, word, out)
			}
		}
		if strings.Contains(out, "NaN") || strings.Contains(out, "%!") {
			t.Errorf("%v:\n%s", args, out)
		}
	}
}

func TestRefusedCommandLines(t *testing.T) {
	for _, c := range []struct {
		args []string
		say  string
	}{
		{[]string{"run"}, "to"},
		{[]string{"run"}, "--to URL is missing"},
		{[]string{"frobnicate"}, "unknown command"},
		{[]string{"srve"}, "did you mean serve?"},
		{[]string{"run", "--jsno"}, "did you mean --json? (see pdperf run --help)"},
		{[]string{"run", "--size"}, "flag needs an argument: --size (see pdperf run --help)"},
		{[]string{"run", "x"}, "pdperf run takes no arguments"},
		{[]string{"completion", "tcsh"}, "unknown command \"tcsh\" of pdperf completion"},
		{[]string{"help", "srve"}, "did you mean serve?"},
		{[]string{"run", "--to", "127.0.0.1:1"}, "scheme://"},
		{[]string{"run", "--to", "ib://127.0.0.1:1"}, "this build has"},
		{[]string{"run", "--to", "mem://x"}, "pdperf local"},
		{[]string{"serve", "--listen", "mem://x"}, "pdperf local"},
		{[]string{"run", "--to", "tcp://192.0.2.1:1"}, "loopback"},
		{[]string{"serve", "--listen", "tcp://0.0.0.0:0"}, "loopback"},
		{[]string{"run", "--to", "tcp://127.0.0.1:1", "--direction", "sideways"}, "want push, pull or both"},
		{[]string{"run", "--to", "tcp://127.0.0.1:1", "--size", "7"}, "multiple of 8"},
		{[]string{"run", "--to", "tcp://127.0.0.1:1", "--size", "0"}, "--size"},
		{[]string{"run", "--to", "tcp://127.0.0.1:1", "--size", "2GiB"}, "--size"},
		{[]string{"run", "--to", "tcp://127.0.0.1:1", "--size", "1.3B"}, "whole bytes"},
		{[]string{"run", "--to", "tcp://127.0.0.1:1", "--frame", "8MiB"}, "--frame"},
		{[]string{"run", "--to", "tcp://127.0.0.1:1", "--frame", "1000"}, "--frame"},
		{[]string{"run", "--to", "tcp://127.0.0.1:1", "--in-flight", "0"}, "--in-flight"},
		{[]string{"run", "--to", "tcp://127.0.0.1:1", "--in-flight", "9", "--buffers", "12"}, "--buffers"},
		{[]string{"run", "--to", "tcp://127.0.0.1:1", "--size", "1GiB", "--buffers", "9"}, "--buffers"},
		{[]string{"run", "--to", "tcp://127.0.0.1:1", "--size", "512MiB", "--frame", "4KiB"}, "larger --frame"},
		{[]string{"run", "--to", "tcp://127.0.0.1:1", "--time", "0"}, "--time"},
		{[]string{"run", "--to", "tcp://127.0.0.1:1", "--time", "2h"}, "--time"},
		{[]string{"run", "--to", "tcp://127.0.0.1:1", "--sum", "md5"}, "--sum"},
		{[]string{"run", "--to", "tcp://127.0.0.1:1", "--encrypt", "no"}, "--encrypt"},
		{[]string{"run", "--to", "tcp://127.0.0.1:1", "--peer", "-"}, "--peer"},
		{[]string{"serve", "--encrypt", "no"}, "--encrypt"},
		{[]string{"local", "--encrypt", "off"}, "--encrypt is for --keys"},
		{[]string{"local", "--keys", "--encrypt", "no"}, "--encrypt"},
		{[]string{"local", "--keys", "--link", "mem://"}, "--keys is for links between processes"},
		{[]string{"serve", "--ring", "1"}, "--ring"},
		{[]string{"serve", "--window", "65"}, "--window"},
		{[]string{"serve", "--hold", "16"}, "--hold"},
		{[]string{"local", "--link", "ssh://x"}, "this build has"},
		{[]string{"floor", "--listen", "tcp://0.0.0.0:0"}, "--any-address"},
		{[]string{"floor", "--listen", "tcp://:0"}, "--any-address"},
		{[]string{"floor", "--to", "tcp://192.0.2.1:1"}, "--any-address"},
		{[]string{"floor", "--to", "http://127.0.0.1:1"}, "tcp://host:port"},
		{[]string{"floor", "--to", "a:1", "--listen", "b:1"}, "exclude each other"},
		{[]string{"floor", "--recv-frames", "0"}, "--recv-frames"},
		{[]string{"floor", "--lowat", "2GiB"}, "--lowat"},
		{[]string{"fault", "--to", "127.0.0.1:1"}, "listen"},
		{[]string{"fault", "--listen", "127.0.0.1:0", "--to", "192.0.2.1:1"}, "--any-address"},
		{[]string{"fault", "--listen", ":0", "--to", "127.0.0.1:1"}, "--any-address"},
		{[]string{"fault", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--half-close"}, "--cut-after"},
		{[]string{"fault", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--cut-after", "1", "--half-close", "--reset"}, "choose one"},
		{[]string{"fault", "--listen", "127.0.0.1:0", "--to", "127.0.0.1:1", "--delay", "-1s"}, "--delay"},
	} {
		status, out, errOut := cli(t, c.args...)
		if status != exitUsage || !strings.Contains(errOut, c.say) || out != "" {
			t.Errorf("%v: status %d, want %d and %q\n%s%s", c.args, status, exitUsage, c.say, out, errOut)
		}
	}
}

func TestNobodyThere(t *testing.T) {
	ln := reserve(t)
	ln.Close()
	to := "tcp://" + ln.Addr().String()
	for _, args := range [][]string{quick("run", "--to", to), quick("floor", "--to", to)} {
		if status, out, errOut := cli(t, args...); status != exitFailed || !strings.Contains(errOut, "connect") || out != "" ||
			args[0] == "run" && !strings.Contains(errOut, "is `pdperf serve` running?") {
			t.Errorf("%v: status %d\n%s%s", args, status, out, errOut)
		}
	}
}

func reserve(t *testing.T) net.Listener {
	t.Helper()
	var lc net.ListenConfig
	ln, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func TestOnceEndsWithTheFirstConnection(t *testing.T) {
	s := start(t, "serve", "--listen", "tcp://127.0.0.1:0", "--frame", "64KiB", "--once")
	sound(t, measured(t, quick("run", "--to", s.url)...))
	if status := s.wait(); status != exitOK {
		t.Errorf("status %d: %s", status, s.err.String())
	}
}

func TestOneRunAtATime(t *testing.T) {
	s := startRun(t, func(ctx context.Context, io streams) int {
		c := (&serveFlags{turnWait: time.Millisecond}).command(io)
		if err := cmdline.Execute(ctx, c, []string{"--listen", "tcp://127.0.0.1:0", "--frame", "64KiB", "--json"}, io.out, io.err); err != nil {
			io.complain(err)
			return exitFailed
		}
		return exitOK
	})
	s.listens()
	long := startText(t, quick("run", "--to", s.url, "--time", "5m")...)
	s.until(`"transfer"`) // its warm-up: it has the turn
	if status, out, errOut := cli(t, quick("run", "--to", s.url)...); status != exitFailed || !strings.Contains(errOut, otherRun) {
		t.Errorf("status %d: %s%s", status, out, errOut)
	}
	select {
	case status := <-long.status:
		long.status <- status
		t.Errorf("the first one ended with status %d: %s", status, long.err.String())
	default:
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "1": 1, "4096": 4096, "16MiB": 16 << 20, "20MB": 20e6, "1.5GB": 1500e6, "0.5KiB": 512, "64 kB": 64000, "3B": 3, "1GiB": 1 << 30, "2KB": 2000,
	} {
		if got, err := parseSize(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
		if want == 0 {
			continue
		}
		if again, err := parseSize(sizeText(want)); err != nil || again != want {
			t.Errorf("%d is written %q, which reads %d, %v", want, sizeText(want), again, err)
		}
	}
	for _, text := range []string{"", "x", "-1", "1.5", "1e30", "NaN", "Inf", "1TiB", "MiB", "1 2", "9007199254740993"} {
		if got, err := parseSize(text); err == nil {
			t.Errorf("%q: %d", text, got)
		}
	}
}

func TestCheckLoopback(t *testing.T) {
	for addr, exposed := range map[string]bool{
		"127.0.0.1:1": false, "127.8.9.10:1": false, "[::1]:1": false, "[::ffff:127.0.0.1]:1": false, "localhost:1": false,
		"0.0.0.0:1": true, "[::]:1": true, ":1": true, "192.0.2.1:1": true, "[2001:db8::1]:1": true,
	} {
		if err := checkLoopback(t.Context(), addr); errors.Is(err, linkkeys.ErrExposed) != exposed || !exposed && err != nil {
			t.Errorf("%s: %v", addr, err)
		}
	}
	if err := checkLoopback(t.Context(), "127.0.0.1"); err == nil || errors.Is(err, linkkeys.ErrExposed) {
		t.Errorf("no port: %v", err)
	}
}
