package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// runUCX measures UCX's own benchmark over TCP: one buffer of a block's size at
// each end, nothing verified. It is told a number of blocks, so the time is as
// long as the link makes it.
func runUCX(ctx context.Context, t trial, program, test string) (figures, error) {
	root := filepath.Dir(filepath.Dir(program))
	env := func(e end) []string {
		return []string{
			"UCX_TLS=tcp", "UCX_LOG_LEVEL=error", "UCX_NET_DEVICES=" + e.device,
			"LD_LIBRARY_PATH=" + root + "/lib:" + root + "/lib/ucx",
		}
	}
	port := strconv.Itoa(t.port)
	s, err := startIn(ctx, t.receiver(), env(t.receiver()), program, "-p", port)
	if err != nil {
		return figures{}, err
	}
	defer s.stop(syscall.SIGTERM)
	time.Sleep(settle) // it says nothing when it is ready
	blocks := max(4, int(t.link.guess*t.time.Seconds()*1e9/float64(t.block)))
	c, err := startIn(ctx, t.sender(), env(t.sender()), program, t.receiver().address, "-p", port,
		"-t", test, "-s", strconv.FormatInt(t.block, 10), "-n", strconv.Itoa(blocks), "-w", strconv.Itoa(ucxWarmup), "-O", "4", "-f", "-v")
	if err != nil {
		return figures{}, err
	}
	if err := errors.Join(c.wait(2*t.time+grace), s.wait(grace)); err != nil {
		return figures{}, err
	}
	return readUCX(c, s, blocks, ucxWarmup, t.block)
}

// readUCX reads the last line of ucx_perftest -f -v: iterations, three times of
// a block in microseconds (percentile, average, overall), two rates in MiB/s
// (average, overall), two of messages.
func readUCX(c, s *process, blocks, warmup int, block int64) (figures, error) {
	last := regexp.MustCompile(`(?m)^\s*\d+,.*$`).FindAllString(c.out.String(), -1)
	if len(last) == 0 {
		return figures{}, fmt.Errorf("read result: %s", c.out.tail())
	}
	fields := strings.Split(strings.TrimSpace(last[len(last)-1]), ",")
	if len(fields) < 6 {
		return figures{}, fmt.Errorf("read result: %v", fields)
	}
	p50, err1 := strconv.ParseFloat(fields[1], 64)
	rate, err2 := strconv.ParseFloat(fields[5], 64)
	if err := errors.Join(err1, err2); err != nil || rate <= 0 {
		return figures{}, fmt.Errorf("read result: %w: %v", err, fields)
	}
	rate *= 1 << 20
	bytes := float64(blocks+warmup) * float64(block) // what the CPU time was spent on
	f := whole(c, s, bytes, bytes/rate)
	f.P50, f.Note = p50/1e3, "one buffer, whole processes"
	return f, nil
}

// runNIXL measures NIXL over UCX's TCP, with 16 blocks of memory at each end.
func runNIXL(ctx context.Context, t trial, python string) (figures, error) {
	env := func(e end) []string {
		return []string{"UCX_TLS=tcp", "UCX_LOG_LEVEL=error", "NIXL_LOG_LEVEL=ERROR", "UCX_NET_DEVICES=" + e.device}
	}
	args := []string{t.bed.path("nixl_peer.py"), "recv", t.receiver().address, strconv.Itoa(t.port), strconv.FormatInt(t.block, 10), strconv.Itoa(nixlBlocks)}
	s, err := startIn(ctx, t.receiver(), env(t.receiver()), python, args...)
	if err != nil {
		return figures{}, err
	}
	defer s.stop(syscall.SIGTERM)
	if _, err := s.until(regexp.MustCompile("listening")); err != nil {
		return figures{}, err
	}
	args[1] = "send"
	c, err := startIn(ctx, t.sender(), env(t.sender()), python, append(args, strconv.Itoa(nixlDepth), strconv.FormatFloat(t.time.Seconds(), 'f', 1, 64))...)
	if err != nil {
		return figures{}, err
	}
	if err := errors.Join(c.wait(2*t.time+grace), s.wait(grace)); err != nil {
		return figures{}, err
	}
	return readNIXL(c, s)
}

func readNIXL(c, s *process) (figures, error) {
	line := regexp.MustCompile(`(?m)^\{.*\}$`).FindString(c.out.String())
	var r struct {
		Bytes    float64   `json:"bytes"`
		Seconds  float64   `json:"seconds"`
		Sender   float64   `json:"sender_cpu"`
		Receiver float64   `json:"receiver_cpu"`
		Arrived  bool      `json:"arrived"`
		BlockMs  []float64 `json:"block_ms"`
	}
	if err := json.Unmarshal([]byte(line), &r); err != nil || r.Bytes == 0 || r.Seconds == 0 {
		return figures{}, fmt.Errorf("read result: %w: %s", err, c.out.tail())
	}
	if !r.Arrived {
		return figures{}, errors.New("not every block arrived")
	}
	f := figures{spent: c.cpu() + s.cpu()}
	f.GB = r.Bytes / 1e9
	f.Goodput = f.GB / r.Seconds
	f.Sender, f.Receiver = r.Sender/f.GB, r.Receiver/f.GB
	f.P50, f.P99 = percentiles(r.BlockMs)
	f.Note = "16 buffers, last bytes of each looked at"
	return f, nil
}

// runMooncake measures Mooncake's transfer engine benchmark over TCP.
func runMooncake(ctx context.Context, t trial, program string) (figures, error) {
	env := func(e end) []string {
		return []string{
			"MC_FORCE_TCP=1", "MC_TCP_ENABLE_CONNECTION_POOL=1", "MC_TCP_LANES_PER_PEER=1", "MC_TCP_BIND_ADDRESS=" + e.address,
			"MC_LOG_LEVEL=INFO", "GLOG_logtostderr=1",
		}
	}
	common := []string{"--protocol=tcp", "--metadata_server=P2PHANDSHAKE", "--backend=classic", fmt.Sprintf("--buffer_size=%d", mooncakeBlocks*t.block)}
	s, err := startIn(ctx, t.receiver(), env(t.receiver()), program,
		append([]string{"--mode=target", fmt.Sprintf("--local_server_name=%s:%d", t.receiver().address, t.port)}, common...)...)
	if err != nil {
		return figures{}, err
	}
	defer s.stop(syscall.SIGKILL)
	port, err := s.until(regexp.MustCompile(`listening on [^\s:]*:?(\d{4,5})`))
	if err != nil {
		return figures{}, err
	}
	time.Sleep(settle) // it says so before it does
	c, err := startIn(ctx, t.sender(), env(t.sender()), program, append([]string{
		"--mode=initiator", fmt.Sprintf("--local_server_name=%s:%d", t.sender().address, t.port+1),
		fmt.Sprintf("--segment_id=%s:%s", t.receiver().address, port[1]), "--operation=write",
		fmt.Sprintf("--block_size=%d", t.block), "--batch_size=" + strconv.Itoa(mooncakeBatch), "--threads=1",
		fmt.Sprintf("--duration=%d", int(t.time.Seconds())), "--report_unit=GB",
	}, common...)...)
	if err != nil {
		return figures{}, err
	}
	if err := c.wait(2*t.time + grace); err != nil {
		return figures{}, err
	}
	s.stop(syscall.SIGKILL) // it never ends by itself; its CPU time is known now
	m := regexp.MustCompile(`duration ([\d.]+), batch count (\d+)`).FindStringSubmatch(c.out.String())
	if m == nil {
		return figures{}, fmt.Errorf("read result: %s", c.out.tail())
	}
	seconds, err1 := strconv.ParseFloat(m[1], 64)
	batches, err2 := strconv.ParseFloat(m[2], 64)
	if err := errors.Join(err1, err2); err != nil || seconds <= 0 || batches <= 0 {
		return figures{}, fmt.Errorf("read result: %w: %s", err, m[0])
	}
	f := whole(c, s, batches*mooncakeBatch*float64(t.block), seconds)
	f.Note = "16 buffers, whole processes"
	return f, nil
}
