package facts

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// ProbeText is what tokenizers are asked about: words, scripts, white space, digits,
// and special tokens of several models.
func ProbeText() string {
	return "Hello, wörld! 你好，世界。 def f(x):\n\treturn x ** 2  # 12345.678\n" +
		"<|im_start|>user<|im_end|><｜User｜><think></think> 🙂  end"
}

// TextOf fingerprints the ids of the probe text.
func TextOf(ids []int32) *Text {
	t := &Text{Count: len(ids)}
	b := make([]byte, 0, 4*len(ids))
	for i, id := range ids {
		b = binary.LittleEndian.AppendUint32(b, uint32(id))
		if i < shownIDs {
			t.First = append(t.First, int(id))
		}
	}
	sum := sha256.Sum256(b)
	t.Hash = hex.EncodeToString(sum[:8])
	return t
}
