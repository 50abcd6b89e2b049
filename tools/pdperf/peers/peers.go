package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"pdlink/tools/linkkeys"
	"pdlink/tools/pdperf/stats"
)

// peer is something that moves blocks.
type peer struct {
	name string
	run  func(ctx context.Context, t trial) (figures, error)

	missing error // what it needs is not there; nil: it is
}

// peerNames are those that are compared when nothing else is asked for.
func peerNames() []string {
	return []string{"pdperf", "pdperf-sealed", "floor", "iperf3", "ucx", "nixl", "mooncake"}
}

// peerByName returns a peer. One whose program is not there is told of now, not after the
// first hour, and fails each measurement, so that it has a row that says so.
func peerByName(name string, o options) (peer, error) {
	base, flags, _ := strings.Cut(name, ":")
	extra := strings.Fields(flags)
	var run func(context.Context, trial) (figures, error)
	var needs string
	switch base {
	case "pdperf":
		needs = o.pdperf
		run = func(ctx context.Context, t trial) (figures, error) { return runPdperf(ctx, t, needs, extra) }
	case "pdperf-sealed":
		needs = o.pdperf
		run = func(ctx context.Context, t trial) (figures, error) { return runSealed(ctx, t, needs, extra) }
	case "floor":
		needs = o.pdperf
		run = func(ctx context.Context, t trial) (figures, error) { return runFloor(ctx, t, needs, extra) }
	case "iperf3":
		needs = "iperf3"
		if path, err := exec.LookPath(needs); err == nil {
			needs = path
		}
		run = func(ctx context.Context, t trial) (figures, error) { return runIperf(ctx, t, needs, extra) }
	case "ucx", "ucx-tag":
		needs = sitePackages(o.dir, "libucx/bin/ucx_perftest")
		test := map[string]string{"ucx": "ucp_put_bw", "ucx-tag": "tag_bw"}[base]
		run = func(ctx context.Context, t trial) (figures, error) { return runUCX(ctx, t, needs, test) }
	case "nixl":
		needs = filepath.Join(o.dir, "venv/bin/python")
		run = func(ctx context.Context, t trial) (figures, error) { return runNIXL(ctx, t, needs) }
	case "mooncake":
		needs = sitePackages(o.dir, "mooncake/transfer_engine_bench")
		run = func(ctx context.Context, t trial) (figures, error) { return runMooncake(ctx, t, needs) }
	default:
		return peer{}, fmt.Errorf("peer %q: want one of %v or ucx-tag", name, peerNames())
	}
	p := peer{name: name, run: run}
	if _, err := os.Stat(needs); err != nil {
		p.missing = fmt.Errorf("peer %s: %w: build pdperf, or run tools/pdperf/peers/setup.sh", base, err)
		p.run = func(context.Context, trial) (figures, error) { return figures{}, p.missing }
	}
	return p, nil
}

// sitePackages is a file of the virtual environment, whatever Python made it.
func sitePackages(dir, file string) string {
	found, err := filepath.Glob(filepath.Join(dir, "venv/lib/python*/site-packages", file))
	if err != nil || len(found) == 0 {
		return filepath.Join(dir, "venv/lib/python3/site-packages", file)
	}
	return found[0]
}

// listens is the first line of pdperf's listening ends.
func listens() *regexp.Regexp { return regexp.MustCompile(`"listen":"(tcp://[^"]+)"`) }

// ownResult is what is used of pdperf's own results; see result.schema.json.
type ownResult struct {
	OK       bool    `json:"ok"`
	Why      string  `json:"why"`
	Goodput  float64 `json:"goodput_gb_per_s"`
	Bytes    uint64  `json:"bytes"`
	Verified uint64  `json:"verified_bytes"`
	Bad      uint64  `json:"bad_pieces"`
	Sealed   bool    `json:"sealed"`
	BlockMs  struct {
		P50 float64 `json:"p50"`
		P99 float64 `json:"p99"`
	} `json:"block_ms"`
	Sender, Receiver ownEnd
}

type ownEnd struct {
	Buffers int   `json:"buffers_used"`
	Bytes   int64 `json:"buffer_bytes"`
	CPU     *struct {
		PerGB float64 `json:"seconds_per_gb"`
	} `json:"cpu"`
	Sockets []struct {
		Retransmits int64 `json:"retransmitted_segments"`
	} `json:"sockets"`
}

// runPdperf measures the transport. Its CPU figures are those of the measured
// window, by its own account, as NIXL's are; iperf3's, UCX's and Mooncake's are
// of whole processes. Flags that begin with --ring, --window or --hold are the
// receiver's.
func runPdperf(ctx context.Context, t trial, program string, extra []string) (figures, error) {
	ours, theirs := splitFlags(extra)
	return runEnds(ctx, t, program, ours, theirs)
}

// runSealed measures the transport with keys at both ends, made for this run.
func runSealed(ctx context.Context, t trial, program string, extra []string) (figures, error) {
	dialler, listener, remove, err := linkkeys.Temporary()
	if err != nil {
		return figures{}, err
	}
	defer remove()
	ours, theirs := splitFlags(extra)
	return runEnds(ctx, t, program, append(ours, "--keys="+dialler), append(theirs, "--keys="+listener))
}

// runEnds measures with these flags of the sender and of the receiver.
func runEnds(ctx context.Context, t trial, program string, ours, theirs []string) (figures, error) {
	s, err := startIn(ctx, t.receiver(), nil, program,
		append([]string{"serve", "--once", "--json", "--listen", t.url()}, theirs...)...)
	if err != nil {
		return figures{}, err
	}
	f, frames, err := runOwn(ctx, t, s, program, append([]string{"run"}, ours...))
	if err == nil {
		t.bed.recvFrames = frames
	}
	return f, err
}

// splitFlags sorts flags into those of run and those of serve; some are both's.
func splitFlags(extra []string) (run, serve []string) {
	for _, f := range extra {
		name, _, _ := strings.Cut(f, "=")
		receivers := slices.Contains([]string{"--ring", "--window", "--hold"}, name)
		if receivers || slices.Contains([]string{"--frame", "--sum", "--encrypt"}, name) {
			serve = append(serve, f)
		}
		if !receivers {
			run = append(run, f)
		}
	}
	return run, serve
}

// runFloor measures the bare sender and receiver, with as many buffers as pdperf
// used last.
func runFloor(ctx context.Context, t trial, program string, extra []string) (figures, error) {
	s, err := startIn(ctx, t.receiver(), nil, program,
		"floor", "--json", "--listen", t.url(), "--recv-frames", strconv.Itoa(t.bed.recvFrames))
	if err != nil {
		return figures{}, err
	}
	f, _, err := runOwn(ctx, t, s, program, append([]string{"floor", "--recv-frames", strconv.Itoa(t.bed.recvFrames)}, extra...))
	return f, err
}

// runOwn runs the sending end against a receiving one that is starting. It
// returns the number of buffers too that the receiver used.
func runOwn(ctx context.Context, t trial, s *process, program string, args []string) (f figures, frames int, err error) {
	defer s.stop(syscall.SIGTERM)
	url, err := s.until(listens())
	if err != nil {
		return f, 0, err
	}
	c, err := startIn(ctx, t.sender(), nil, program, append(args, "--json", "--to", url[1],
		"--size", strconv.FormatInt(t.block, 10), "--time", t.time.String())...)
	if err != nil {
		return f, 0, err
	}
	if err := errors.Join(c.wait(2*t.time+grace), s.wait(grace)); err != nil {
		return f, 0, err
	}
	var r ownResult
	if err := json.Unmarshal([]byte(c.out.String()), &r); err != nil {
		return f, 0, fmt.Errorf("read result: %w: %s", err, c.out.tail())
	}
	if !r.OK || r.Sender.CPU == nil || r.Receiver.CPU == nil {
		return f, 0, fmt.Errorf("no sound result: %s", r.Why)
	}
	f.spent = c.cpu() + s.cpu()
	f.Goodput, f.GB = r.Goodput, float64(r.Bytes)/1e9
	f.Sender, f.Receiver = r.Sender.CPU.PerGB, r.Receiver.CPU.PerGB
	f.P50, f.P99, f.Verified, f.Sealed = r.BlockMs.P50, r.BlockMs.P99, r.Verified >= r.Bytes, r.Sealed
	for _, x := range r.Sender.Sockets {
		f.Retrans += x.Retransmits
	}
	f.Note = fmt.Sprintf("from %d MB to %d MB", int64(r.Sender.Buffers)*r.Sender.Bytes/1_000_000, int64(r.Receiver.Buffers)*r.Receiver.Bytes/1_000_000)
	if r.Bad > 0 {
		f.Note += fmt.Sprintf(", %d bad pieces", r.Bad)
	}
	return f, r.Receiver.Buffers, nil
}

// runIperf measures iperf3, which sends one hot buffer of 1 MiB and verifies
// nothing.
func runIperf(ctx context.Context, t trial, program string, extra []string) (figures, error) {
	port := strconv.Itoa(t.port)
	s, err := startIn(ctx, t.receiver(), nil, program, "-s", "-1", "-p", port, "--forceflush")
	if err != nil {
		return figures{}, err
	}
	defer s.stop(syscall.SIGTERM)
	if _, err := s.until(regexp.MustCompile("listening on")); err != nil {
		return figures{}, err
	}
	c, err := startIn(ctx, t.sender(), nil, program, append([]string{
		"-c", t.receiver().address, "-p", port, "-t", strconv.Itoa(int(t.time.Seconds())), "-l", "1M", "-J",
	}, extra...)...)
	if err != nil {
		return figures{}, err
	}
	if err := errors.Join(c.wait(t.time+grace), s.wait(grace)); err != nil {
		return figures{}, err
	}
	var r struct {
		End struct {
			Sent struct {
				Retransmits int64 `json:"retransmits"`
			} `json:"sum_sent"`
			Received struct {
				Bytes   float64 `json:"bytes"`
				Seconds float64 `json:"seconds"`
			} `json:"sum_received"`
			Congestion string `json:"sender_tcp_congestion"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(c.out.String()), &r); err != nil || r.End.Received.Seconds == 0 {
		return figures{}, fmt.Errorf("read result: %w: %s", err, c.out.tail())
	}
	f := whole(c, s, r.End.Received.Bytes, r.End.Received.Seconds)
	f.Retrans, f.Note = r.End.Sent.Retransmits, r.End.Congestion+", one hot buffer"
	return f, nil
}

// whole is the figures of a peer whose CPU time is that of its processes' whole
// lives.
func whole(sender, receiver *process, bytes, seconds float64) figures {
	f := figures{spent: sender.cpu() + receiver.cpu()}
	f.GB = bytes / 1e9
	f.Goodput = f.GB / seconds
	f.Sender, f.Receiver = sender.cpu()/f.GB, receiver.cpu()/f.GB
	return f
}

// percentiles of milliseconds, for peers that tell each.
func percentiles(ms []float64) (p50, p99 float64) {
	if len(ms) == 0 {
		return 0, 0
	}
	slices.Sort(ms)
	return stats.Percentile(ms, 50), stats.Percentile(ms, 99)
}
