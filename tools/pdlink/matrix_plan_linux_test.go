//go:build faults

package main

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"pdlink/bridge/replay"
	"pdlink/kernels/safetensors"
)

// The made-up case of the matrix: 6 blocks of half a MiB, and some tokens more.
const (
	madeLayers   = 4
	madeHeads    = 4
	madeHeadDim  = 64
	madeBlock    = 128 // tokens
	madeBlocks   = 6
	madeTail     = 17 // tokens behind the last block
	madeElements = madeHeads * madeHeadDim
)

// matrixPlan is a transfer of the matrix: what is sent and how.
type matrixPlan struct {
	dir    string
	format string
	chunk  int // tokens at a time: a frame each
	block  int // tokens of a block
	want   *expectation
}

// makeCase writes a case of plain keys and values with random contents. Other seeds
// make other blocks.
func makeCase(tb testing.TB, dir string, seed uint64) {
	tb.Helper()
	rng := rand.New(rand.NewPCG(seed, 0x6d6174726978))
	tokens := make([]int, madeBlock*madeBlocks+madeTail)
	for i := range tokens {
		tokens[i] = rng.IntN(1000)
	}
	about, err := json.Marshal(map[string]any{
		"kind": "kv", "model": "made-up", "format": "5", "block_size": madeBlock, "numerics": "exact",
		"layers": madeLayers, "kv_heads": madeHeads, "head_dim": madeHeadDim, "dtype": "BF16", "tokens": tokens,
	})
	if err != nil {
		tb.Fatal(err)
	}
	var tensors []safetensors.Tensor
	size := int64(len(tokens) * madeElements * 2)
	for layer := range madeLayers {
		for _, part := range []string{"k", "v"} {
			at := int64(len(tensors)) * size
			tensors = append(tensors, safetensors.Tensor{
				Name: "layer_" + strconv.Itoa(layer) + "." + part, DType: "BF16",
				Shape: []int64{int64(len(tokens)), madeHeads, madeHeadDim}, Begin: at, End: at + size,
			})
		}
	}
	header, err := safetensors.EncodeHeader(tensors, nil)
	if err != nil {
		tb.Fatal(err)
	}
	data := make([]byte, size*int64(len(tensors)))
	for i := 0; i+2 <= len(data); i += 2 { // small numbers: blocks are checked for finite values
		x := rng.Uint32() & 0xbfff
		data[i], data[i+1] = byte(x), byte(x>>8)
	}
	for name, content := range map[string][]byte{"case.json": about, "capture.safetensors": append(header, data...)} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			tb.Fatal(err)
		}
	}
}

// matrixBench is what the runs of one worker share.
type matrixBench struct {
	plans []matrixPlan
	keys  [2]string // directories of keys that know each other: sender's, receiver's
	clean map[string]cleanTransfer
}

// cleanTransfer is what a transfer without a fault passes through a relay.
type cleanTransfer struct {
	all       int64 // bytes, both directions
	dialler   int64 // of them, from the sender
	handshake int64 // of all, until the transfer is opened
	time      time.Duration
}

func newMatrixBench(tb testing.TB) *matrixBench {
	tb.Helper()
	b := &matrixBench{clean: map[string]cleanTransfer{}}
	made := filepath.Join(tb.TempDir(), "made")
	if err := os.Mkdir(made, 0o700); err != nil {
		tb.Fatal(err)
	}
	makeCase(tb, made, 1)
	for _, p := range []matrixPlan{
		{dir: made, format: "5", chunk: 16}, {dir: made, format: "3", chunk: 32}, {dir: made, format: "5", chunk: 100},
		{dir: filepath.Join(casesDir, "dsv4-a"), format: "5", chunk: 64},
	} {
		p.want = expectOf(tb, p.dir, p.format)
		c, err := replay.Load(p.dir)
		if err != nil {
			tb.Fatal(err)
		}
		spec, err := c.Spec(replay.Overrides{Format: p.format})
		if err != nil {
			tb.Fatal(err)
		}
		p.block = spec.BlockTokens
		b.plans = append(b.plans, p)
	}
	b.pair(tb)
	return b
}

// pair makes the keys of two hosts that trust each other.
func (b *matrixBench) pair(tb testing.TB) {
	tb.Helper()
	public := [2]string{}
	for i, name := range []string{"sender", "receiver"} {
		b.keys[i] = filepath.Join(tb.TempDir(), name)
		p := start(tb, "keys", "init", "--dir", b.keys[i], "--name", name, "--json")
		var own ownKey
		if status := p.wait(); status != exitOK {
			tb.Fatalf("make keys: status %d: %v", status, p)
		}
		if err := json.Unmarshal([]byte(p.out.String()), &own); err != nil {
			tb.Fatalf("make keys: %v: %v", err, p)
		}
		public[i] = own.Key
	}
	for i, name := range []string{"receiver", "sender"} {
		if p := start(tb, "keys", "pair", name, public[1-i], "--dir", b.keys[i]); p.wait() != exitOK {
			tb.Fatalf("pair: %v", p)
		}
	}
}

// measure returns what a transfer like that of r passes without a fault, over one
// connection.
func (b *matrixBench) measure(r *matrixRun) cleanTransfer {
	key := strings.Join([]string{r.plan.dir, r.plan.format, strconv.Itoa(r.plan.chunk), strconv.FormatBool(r.cell.sealed)}, " ")
	if c, ok := b.clean[key]; ok {
		return c
	}
	m := &matrixRun{tape: r.tape, bench: b, cell: r.cell, plan: r.plan, rng: r.rng, ring: smallRing, store: r.TempDir(), parts: 1}
	begin := time.Now()
	m.startReceiver()
	link := newRelay(r, m.receiver.addr, 0)
	s := m.startSender(link, 0)
	if status := s.wait(); status != exitOK {
		r.Fatalf("transfer without a fault: status %d: %v", status, s)
	}
	m.endReceiver()
	if c := m.plan.want.check(r, m.store); c.visible != len(m.plan.want.hashes) || c.parts > 0 {
		r.Fatalf("transfer without a fault: %d of %d blocks, %d temporary files", c.visible, len(m.plan.want.hashes), c.parts)
	}
	c := cleanTransfer{all: link.passed.Load(), dialler: link.dialler.Load(), handshake: link.first.Load(), time: time.Since(begin)}
	if c.handshake == 0 || c.handshake >= c.all {
		r.Fatalf("no frame was seen in a transfer without a fault: %+v", c)
	}
	b.clean[key] = c
	return c
}
