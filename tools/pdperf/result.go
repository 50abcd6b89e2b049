package main

import (
	"encoding/json"
	"fmt"
	"math"

	"pdlink/tools/pdperf/flow"
	"pdlink/tools/pdperf/stats"
	"pdlink/tools/pdperf/why"
	"pdlink/transport/wire"
)

// schemaName is the version of what --json prints; fields may be added to it,
// others would be a new one.
const schemaName = "pdperf/1"

// result is what a run came to. result.schema.json documents the fields.
type result struct {
	Schema      string `json:"schema"`
	Program     string `json:"program"`
	Version     string `json:"version"`
	OK          bool   `json:"ok"`
	Why         string `json:"why"`
	Interrupted bool   `json:"interrupted"`
	Rep         int    `json:"rep"`
	Link        string `json:"link"`
	Local       string `json:"local"`
	Remote      string `json:"remote"`
	Peer        string `json:"peer"`
	Direction   string `json:"direction"`
	Processes   int    `json:"processes"`

	Model       string  `json:"model"`
	BlockTokens int     `json:"block_tokens"`
	BlockBytes  int64   `json:"block_bytes"`
	FrameBytes  int64   `json:"frame_bytes"`
	InFlight    int     `json:"blocks_in_flight"`
	Lanes       int     `json:"lanes"`
	Sum         string  `json:"sum"`
	Presummed   bool    `json:"presummed"`
	Sealed      bool    `json:"sealed"`
	ZeroCopy    bool    `json:"zero_copy"`
	Warmup      float64 `json:"warmup_seconds"`

	Seconds  float64    `json:"seconds"`
	Blocks   uint64     `json:"blocks"`
	Bytes    uint64     `json:"bytes"`
	Goodput  float64    `json:"goodput_gb_per_s"`
	Push     float64    `json:"push_gb_per_s"`
	Pull     float64    `json:"pull_gb_per_s"`
	PerToken float64    `json:"ms_per_token"`
	BlockMs  blockTimes `json:"block_ms"`
	Fewer    uint64     `json:"fewer_blocks"`
	Frames   uint64     `json:"frames"`
	Verified uint64     `json:"verified_bytes"`
	Bad      uint64     `json:"bad_pieces"`
	Resent   uint64     `json:"resent_bytes"`

	Line      float64  `json:"line_rate_gb_per_s"`
	LineOf    string   `json:"line_rate_of"`
	Limited   *limited `json:"limited_by"`
	Disturbed []string `json:"disturbed"`
	Watched   *watched `json:"watched"`

	Sender   endResult `json:"sender"`
	Receiver endResult `json:"receiver"`
	Both     *cpuUse   `json:"both_cpu"`

	times *stats.Times // of BlockMs
}

// blockTimes are percentiles of the time from handing a block's first byte to
// the link to its acknowledgement.
type blockTimes struct {
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99_9"`
	Max  float64 `json:"max"`
}

// limited is what limited the link, why.Verdict in a result.
type limited struct {
	Cause    string  `json:"cause"`
	Share    float64 `json:"share"`
	Evidence string  `json:"evidence"`
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
	NIC      *nicFacts     `json:"interface"`
	Host     hostFacts     `json:"host"`
	Load     *loadFacts    `json:"host_load"`
	Backlog  *backlogFacts `json:"reader_backlog"`
	Waits    *waitFacts    `json:"frames_waited"`
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
	r.End.clean()
	return r, nil
}

// clean makes what a peer says of itself fit to print.
func (e *endResult) clean() {
	e.Sockets, e.Ports = cleanSockets(e.Sockets), cleanPorts(e.Ports)
	for _, text := range []*string{&e.Platform, &e.Host.Kernel, &e.Host.CPU, &e.Host.Boot, &e.Host.Go} {
		*text = wire.Printable(*text, 64)
	}
	if n := e.NIC; n != nil {
		n.Name, n.Driver, n.Offloads = wire.Printable(n.Name, 64), wire.Printable(n.Driver, 64), n.Offloads[:min(len(n.Offloads), 8)]
		for i := range n.Offloads {
			n.Offloads[i] = wire.Printable(n.Offloads[i], 16)
		}
	}
}

// timesOf are the percentiles of block times.
func timesOf(t *stats.Times) blockTimes {
	if t == nil {
		return blockTimes{}
	}
	ms := func(p float64) float64 { return float64(t.Percentile(p)) / 1e6 }
	return blockTimes{P50: ms(50), P90: ms(90), P99: ms(99), P999: ms(99.9), Max: float64(t.Max()) / 1e6}
}

// blockMs is a percentile (50, 90, 99 or 99.9) of the block times; NaN where there are too
// few blocks for it: with fewer than 1000 the 99.9th is the longest one, whatever the others
// were.
func (r *result) blockMs(p float64) float64 {
	blocks := float64(r.timed())
	b := r.BlockMs
	for _, c := range []struct{ p, least, ms float64 }{{50, 1, b.P50}, {90, 10, b.P90}, {99, 100, b.P99}, {99.9, 1000, b.P999}} {
		if p == c.p && blocks >= c.least {
			return c.ms
		}
	}
	return math.NaN()
}

// timed is how many blocks the percentiles are of at least: of both directions those of the
// one that had fewer. Results of before Fewer have half of both then.
func (r *result) timed() uint64 {
	switch {
	case r.Direction != both:
		return r.Blocks
	case r.Fewer > 0:
		return min(r.Fewer, r.Blocks/2)
	}
	return r.Blocks / 2
}

// sent is what a sender measured.
type sent struct {
	blocks  uint64
	bytes   uint64 // of blocks that were acknowledged
	resent  uint64
	seconds float64 // first byte to last acknowledgement
	times   *stats.Times
	early   bool // it was interrupted
	end     endResult
}

// settle puts both ends' figures into r and decides whether the run was as it
// should be.
func (r *result) settle(s sent, peer report) {
	r.Schema, r.Version = schemaName, buildVersion()
	r.Seconds, r.Blocks, r.Bytes, r.Resent, r.Interrupted = s.seconds, s.blocks, s.bytes, s.resent, s.early
	if s.seconds > 0 {
		r.Goodput = float64(s.bytes) / s.seconds / 1e9
	}
	r.times = s.times
	r.Frames, r.Verified, r.Bad = peer.Frames, peer.Verified, peer.Bad
	r.Sender, r.Receiver = s.end, peer.End
	switch {
	case s.blocks == 0:
		r.Why = "no block was sent"
	case peer.Blocks != s.blocks || peer.Bytes != s.bytes:
		r.Why = fmt.Sprintf("the sender counts %d blocks with %d bytes, the receiver %d and %d", s.blocks, s.bytes, peer.Blocks, peer.Bytes)
	case r.Sum != "none" && peer.Verified < s.bytes:
		r.Why = fmt.Sprintf("%d bytes were acknowledged and %d verified", s.bytes, peer.Verified)
	}
	r.conclude()
}

// conclude computes what follows from the figures of both ends.
func (r *result) conclude() {
	switch r.Direction {
	case push:
		r.Push, r.Pull = r.Goodput, 0
	case pull:
		r.Push, r.Pull = 0, r.Goodput
	}
	if r.times != nil {
		r.BlockMs = timesOf(r.times)
	}
	if r.BlockTokens > 0 && r.Blocks > 0 {
		r.PerToken = r.Seconds * 1e3 / (float64(r.Blocks) * float64(r.BlockTokens))
	}
	r.Sender.CPU.per(r.Bytes)
	r.Receiver.CPU.per(r.Bytes)
	if r.Processes == 1 && r.Both == nil { // one process cannot tell its ends apart
		r.Both, r.Sender.CPU, r.Receiver.CPU = r.Sender.CPU, nil, nil
	}
	r.Line, r.LineOf = r.lineRate()
	if over := r.overLine(); r.Why == "" && over != "" {
		r.Why = over
	}
	r.OK = r.Why == ""
	r.Disturbed = r.disturbances()
	r.Limited = r.limit()
	r.round()
}

// limit asks why for what limited the link.
func (r *result) limit() *limited {
	if r.Blocks == 0 || r.Seconds <= 0 || r.Direction == both {
		return nil
	}
	in := why.Input{Seconds: r.Seconds, Bytes: r.Bytes, Line: r.Line * 1e9, Sender: r.Sender.work(r.Lanes), Receiver: r.Receiver.work(r.Lanes)}
	if r.Both != nil {
		return nil // the CPU time of one end alone is not known, and there are no sockets
	}
	in.Sender.InFlight = r.InFlight
	in.Flow = why.FlowOf(counters(r.Sender.Sockets, r.Bytes))
	for _, s := range r.Receiver.Sockets {
		in.Flow.ReceiveBuffer = max(in.Flow.ReceiveBuffer, uint64(max(0, s.RecvBuffer)))
	}
	if r.Watched != nil && r.Direction == push { // the window of a pull is the other end's
		in.Flow.Closed, in.Flow.ClosedFor = r.Watched.ZeroWindows, r.Watched.WindowClosed
	}
	v := why.Limit(in)
	return &limited{string(v.Cause), v.Share, v.Evidence}
}

// work is what an end's processors did, as why wants it.
func (e *endResult) work(lanes int) why.End {
	w := why.End{Threads: max(1, min(lanes, e.Cores))}
	if e.CPU != nil {
		w.Run, w.Ready = e.CPU.seconds(), e.CPU.Ready
	}
	if e.Backlog != nil {
		w.Backlog = flow.Backlog{Samples: e.Backlog.Samples, Waiting: e.Backlog.Waiting}
	}
	if e.Waits != nil {
		w.Device, w.Leases, w.Grants, w.Acks = e.Waits.Device, e.Waits.Leases, e.Waits.Grants, e.Waits.Acks
	}
	return w
}

// round cuts digits that mean nothing.
func (r *result) round() {
	for _, v := range []*float64{
		&r.Seconds, &r.Warmup, &r.Goodput, &r.Push, &r.Pull, &r.PerToken, &r.Line,
		&r.BlockMs.P50, &r.BlockMs.P90, &r.BlockMs.P99, &r.BlockMs.P999, &r.BlockMs.Max,
	} {
		*v = micro(*v)
	}
	for _, c := range []*cpuUse{r.Sender.CPU, r.Receiver.CPU, r.Both} {
		if c != nil {
			for _, v := range []*float64{&c.User, &c.System, &c.PerGB, &c.Ready} {
				*v = micro(*v)
			}
			c.ReadsPerGB = math.Round(c.ReadsPerGB*10) / 10
		}
	}
	if r.Limited != nil {
		r.Limited.Share = micro(r.Limited.Share)
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
	return r.err()
}

// err is the error that a bad result is.
func (r *result) err() error {
	if r.OK {
		return nil
	}
	return failed(fmt.Errorf("the run failed: %s", r.Why))
}
