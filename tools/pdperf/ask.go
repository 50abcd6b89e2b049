package main

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Kinds of transfers of this program.
const (
	// kindPerf has blocks of one size, and what is in them means nothing.
	kindPerf = "pdperf"

	// kindPull has no blocks: it asks the other end to send a kindPerf transfer, and its
	// result is what that end measured.
	kindPull = "pdperf-pull"
)

// ask is what the opener of a transfer says.
type ask struct {
	Version    int      `json:"version"`
	BlockBytes uint64   `json:"block_bytes"`
	Pull       *pullAsk `json:"pull,omitempty"` // of kindPull
}

// askVersion is the only one so far.
const askVersion = 1

// pullAsk is what the other end is to send.
type pullAsk struct {
	Model     string  `json:"model"`
	Frame     int64   `json:"frame_bytes"`
	InFlight  int     `json:"in_flight"`
	Seconds   float64 `json:"seconds"`
	Warmup    float64 `json:"warmup_seconds"`
	Presummed bool    `json:"presummed"`
}

// parseAsk reads what a peer asks for, which may be anything.
func parseAsk(meta []byte) (ask, error) {
	var a ask
	if len(meta) > maxLine {
		return a, fmt.Errorf("a request of %d bytes is too long", len(meta))
	}
	d := json.NewDecoder(bytes.NewReader(meta))
	if err := d.Decode(&a); err != nil {
		return a, fmt.Errorf("read request: %w", err)
	}
	if a.Version != askVersion {
		return a, fmt.Errorf("request of version %d, this end knows %d: use the same release on both ends", a.Version, askVersion)
	}
	if a.BlockBytes < unit || a.BlockBytes > maxBlock {
		return a, fmt.Errorf("blocks of %d bytes, want %d to %d", a.BlockBytes, unit, maxBlock)
	}
	return a, nil
}
