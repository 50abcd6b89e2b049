package kernels

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"testing"
)

// digest is the first 16 hex digits of the SHA-256 of the bf16 patterns.
func digest(a []uint16) string {
	b := make([]byte, 0, 2*len(a))
	for _, v := range a {
		b = binary.LittleEndian.AppendUint16(b, v)
	}
	h := sha256.Sum256(b)
	return hex.EncodeToString(h[:8])
}

// fullSizeDigests were computed by an independent numpy implementation of the three
// profiles, from the same inputs.
func fullSizeDigests() []fullSizeCase {
	return []fullSizeCase{
		{0, MLXMetal, 2048, map[string]string{"win@end": "d25b8020245ee04a", "win_pre@end": "8f504582a2a19db5"}},
		{4, MLXMetal, 2048, map[string]string{
			"win@end": "6b448310055f5c8e", "win_pre@end": "31c85fb78719892d", "pooled": "a30f5d9780b7d17d", "idx_pooled": "885962de43997c63",
			"prev_kv@end": "b0efcf8395098d76", "prev_gate@end": "8e88f2cd0f154f37",
			"idx_prev_kv@end": "e759138e31724aae", "idx_prev_gate@end": "b18e6ecb9a5c6a64",
		}},
		{128, MLXMetal, 2048, map[string]string{"win@end": "9f9a9fd3bf4dab1d", "win_pre@end": "940a77bba3aca668", "pooled": "8fcefe2fe80e604b"}},
		{0, MLXCPU, 256, map[string]string{"win@end": "59b8fba64ada0114", "win_pre@end": "162186c33750938e"}},
		{4, MLXCPU, 256, map[string]string{
			"win@end": "283280f49735d426", "pooled": "e49b766e8ba9799d", "idx_pooled": "b21dc5cddede9b09",
			"prev_kv@end": "4e768ef90b6f8804", "prev_gate@end": "558f56213ad1f387",
		}},
		{128, MLXCPU, 256, map[string]string{"win@end": "de2abff211975f8b", "pooled": "2f9551806f611c44"}},
		{0, Ideal, 256, map[string]string{"win@end": "5672193b09e48700", "win_pre@end": "29ed87883c5b62ff"}},
		{4, Ideal, 256, map[string]string{
			"win@end": "6fe9f9ae76918606", "pooled": "facac6c054f01b81", "idx_pooled": "0d72ee3c8c3de93a",
			"prev_gate@end": "5a0e3d4a152737e4", "idx_prev_kv@end": "2e09c195552244ca",
		}},
		{128, Ideal, 256, map[string]string{"win@end": "8de77d3bfc97c09c", "pooled": "6378a66eb3a3f4b3"}},
	}
}

type fullSizeCase struct {
	ratio    int
	numerics Numerics
	tokens   int
	want     map[string]string
}

// TestFullSizeLayers holds one layer of each kind at the real model's dimensions
// to the digests.
func TestFullSizeLayers(t *testing.T) {
	inputs := map[int]string{0: "c367eb9449742807", 4: "1b258ed8fe343890", 128: "46b7cbd8d633817b"}
	const tokens = 2048
	for _, ratio := range []int{0, 4, 128} {
		g := fullGeometry(ratio)
		w, x := sampleWeights(g, ratio), samplePatterns(ratio, 0, tokens*g.Hidden, 1, 0)
		if d := digest(x); d != inputs[ratio] {
			t.Fatalf("input digest %s, want %s: the generator is wrong", d, inputs[ratio])
		}
		for _, c := range fullSizeDigests() {
			if c.ratio != ratio || (underRace && (c.tokens > 256 || c.numerics == Ideal)) {
				continue
			}
			t.Run(fmt.Sprintf("ratio %d %v", ratio, c.numerics), func(t *testing.T) {
				l, err := NewLayer(g, 0, w, c.numerics, tokens, 0)
				must(t, err)
				r := newRun()
				r.feed(t, l, x[:c.tokens*g.Hidden], 777)
				for name, want := range c.want {
					if got := digest(r.arrays[name]); got != want {
						t.Errorf("%s: digest %s, want %s", name, got, want)
					}
				}
			})
		}
	}
}
