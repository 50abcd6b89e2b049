package main

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"

	"pdlink/tools/pdperf/stats"
	"pdlink/transport/wire"
)

// schemaName is the version of what --json prints; fields may be added to it,
// others would be a new one.
const schemaName = "pdperf/1"

// result is what a run came to. result.schema.json documents the fields.
type result struct {
	Schema    string `json:"schema"`
	Program   string `json:"program"`
	OK        bool   `json:"ok"`
	Why       string `json:"why"`
	Link      string `json:"link"`
	Local     string `json:"local"`
	Remote    string `json:"remote"`
	Peer      string `json:"peer"`
	Direction string `json:"direction"`
	Processes int    `json:"processes"`

	BlockBytes int64   `json:"block_bytes"`
	FrameBytes int64   `json:"frame_bytes"`
	InFlight   int     `json:"blocks_in_flight"`
	Lanes      int     `json:"lanes"`
	Sum        string  `json:"sum"`
	Presummed  bool    `json:"presummed"`
	Sealed     bool    `json:"sealed"`
	ZeroCopy   bool    `json:"zero_copy"`
	Warmup     float64 `json:"warmup_seconds"`

	Seconds  float64    `json:"seconds"`
	Blocks   uint64     `json:"blocks"`
	Bytes    uint64     `json:"bytes"`
	Goodput  float64    `json:"goodput_gb_per_s"`
	BlockMs  blockTimes `json:"block_ms"`
	Frames   uint64     `json:"frames"`
	Verified uint64     `json:"verified_bytes"`
	Bad      uint64     `json:"bad_pieces"`
	Resent   uint64     `json:"resent_bytes"`

	Sender   endResult `json:"sender"`
	Receiver endResult `json:"receiver"`
	Both     *cpuUse   `json:"both_cpu"`
}

// blockTimes are percentiles of the time from handing a block's first byte to
// the link to its acknowledgement.
type blockTimes struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// endResult is one end of a run.
type endResult struct {
	Platform string        `json:"platform"`
	Cores    int           `json:"cores"`
	Buffers  int           `json:"buffers_used"`
	Buffer   int64         `json:"buffer_bytes"`
	Owned    int           `json:"buffers"`
	Window   int           `json:"frames_granted_ahead"`
	CPU      *cpuUse       `json:"cpu"`
	Sockets  []socketFacts `json:"sockets"`
	Ports    []portFacts   `json:"ports"`
}

// report is what a receiver says at the end of a transfer.
type report struct {
	Blocks   uint64    `json:"blocks"` // that were whole
	Bytes    uint64    `json:"bytes"`  // of them
	Frames   uint64    `json:"frames"`
	Verified uint64    `json:"verified_bytes"`
	Bad      uint64    `json:"bad_pieces"`
	End      endResult `json:"end"`
}

// parseReport reads what a peer said, which may be anything.
func parseReport(text []byte) (report, error) {
	var r report
	if err := json.Unmarshal(text, &r); err != nil {
		return report{}, fmt.Errorf("read the receiver's report: %w", err)
	}
	r.End.Platform = wire.Printable(r.End.Platform, 64)
	r.End.Sockets, r.End.Ports = cleanSockets(r.End.Sockets), cleanPorts(r.End.Ports)
	return r, nil
}

// timesOf are the percentiles of block times, which it sorts.
func timesOf(times []time.Duration) blockTimes {
	if len(times) == 0 {
		return blockTimes{}
	}
	ms := make([]float64, len(times))
	for i, d := range times {
		ms[i] = float64(d) / float64(time.Millisecond)
	}
	slices.Sort(ms)
	return blockTimes{
		P50: stats.Percentile(ms, 50), P90: stats.Percentile(ms, 90),
		P99: stats.Percentile(ms, 99), Max: ms[len(ms)-1],
	}
}

// sent is what a sender measured.
type sent struct {
	blocks  uint64
	bytes   uint64 // of blocks that were acknowledged
	resent  uint64
	seconds float64 // first byte to last acknowledgement
	times   []time.Duration
	end     endResult
}

// settle puts both ends' figures into r and decides whether the run was as it
// should be.
func (r *result) settle(s sent, peer report) {
	r.Schema = schemaName
	r.Seconds, r.Blocks, r.Bytes, r.Resent = s.seconds, s.blocks, s.bytes, s.resent
	if s.seconds > 0 {
		r.Goodput = float64(s.bytes) / s.seconds / 1e9
	}
	r.BlockMs = timesOf(s.times)
	r.Frames, r.Verified, r.Bad = peer.Frames, peer.Verified, peer.Bad
	r.Sender, r.Receiver = s.end, peer.End
	for _, c := range []*cpuUse{r.Sender.CPU, r.Receiver.CPU} {
		if c != nil && s.bytes > 0 {
			c.PerGB = (c.User + c.System) / (float64(s.bytes) / 1e9)
		}
	}
	if r.Processes == 1 { // one process cannot tell its ends apart
		r.Both, r.Sender.CPU, r.Receiver.CPU = r.Sender.CPU, nil, nil
	}
	switch {
	case s.blocks == 0:
		r.Why = "no block was acknowledged"
	case peer.Blocks != s.blocks || peer.Bytes != s.bytes:
		r.Why = fmt.Sprintf("the sender counts %d blocks and %d bytes, the receiver %d and %d", s.blocks, s.bytes, peer.Blocks, peer.Bytes)
	case r.Sum != "none" && peer.Verified < s.bytes:
		r.Why = fmt.Sprintf("%d bytes were acknowledged and %d verified", s.bytes, peer.Verified)
	default:
		r.OK = true
	}
	r.round()
}

// round cuts digits that mean nothing.
func (r *result) round() {
	for _, v := range []*float64{
		&r.Seconds, &r.Warmup, &r.Goodput, &r.BlockMs.P50, &r.BlockMs.P90, &r.BlockMs.P99, &r.BlockMs.Max,
	} {
		*v = math.Round(*v*1e6) / 1e6
	}
	for _, c := range []*cpuUse{r.Sender.CPU, r.Receiver.CPU, r.Both} {
		if c != nil {
			c.User, c.System = math.Round(c.User*1e6)/1e6, math.Round(c.System*1e6)/1e6
			c.PerGB = math.Round(c.PerGB*1e6) / 1e6
		}
	}
}

// print gives a result to the command's output, and the error that a bad one
// ends the command with.
func (r *result) print(io streams, asJSON bool) error {
	if asJSON {
		if err := io.json(r); err != nil {
			return err
		}
	} else {
		printResult(io, r)
	}
	if r.OK {
		return nil
	}
	return failed(fmt.Errorf("the run failed: %s", r.Why))
}
