package prefill

import (
	"testing"

	"pdlink/bridge"
	"pdlink/bridge/omlx"
	"pdlink/bridge/prefill/calls"
)

// A prompt may end in the middle of the plan's last block, with plain keys and values.
func TestUnfinishedLastBlock(t *testing.T) {
	dsv4 := omlx.Spec{
		Kind: omlx.KindDSV4, Model: "m", BlockTokens: 128, Format: omlx.Format5, Layers: 3, Ratios: []int{0, 4, 128},
		HeadDim: 32, IndexHeadDim: 16, Window: 128,
	}
	for name, c := range map[string]struct {
		spec   omlx.Spec
		tokens int
		good   bool
	}{
		"whole":              {kvSpec(), 48, true},
		"without a token":    {kvSpec(), 47, true},
		"one token of it":    {kvSpec(), 33, true},
		"nothing of it":      {kvSpec(), 32, false},
		"behind it":          {kvSpec(), 49, false},
		"DeepSeek-V4, whole": {dsv4, 384, true},
		"DeepSeek-V4, part":  {dsv4, 383, false},
	} {
		plan := omlx.Plan{Spec: c.spec, Hashes: []omlx.Hash{{1}, {2}, {3}}}
		meta, err := plan.MarshalBinary()
		must(t, err)
		if _, _, err := planOf(&calls.Call{Kind: omlx.Kind, Plan: meta, Tokens: c.tokens}); (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A worker whose prompt ends there takes part, and one that misses a token does not.
func TestWorkerOfAnUnfinishedLastBlock(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{})
	p := d.newPrompt(t, "unfinished", 3)
	job := p.job(t, h.conn)
	job.Tokens = 40
	live := h.runJob(job)
	c := connect(t, h.socket, helloOf(0, 1, 1))
	b := begin{Transfer: p.id, PromptTokens: 39, Mode: modePieces, DType: dtypeBF16}
	if _, why, _, _ := c.begin(b); why != codePlan {
		t.Errorf("a prompt of 39 tokens: %v", why)
	}
	b.PromptTokens = 40
	handle, why, g, arrays := c.begin(b)
	if why != codeOK || g.Blocks != 3 {
		t.Fatalf("a prompt of 40 tokens: %v, %+v", why, g)
	}
	for n := range 3 {
		c.put(p, handle, headRuns(n, arrays, 0, 1)...)
	}
	c.end(handle, 40)
	if res := live.result(); live.err != nil || res.State != bridge.Complete || res.Reports[0].Tokens != 40 {
		t.Errorf("%+v, %v", res, live.err)
	}
}
