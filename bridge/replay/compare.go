package replay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"pdlink/bridge/omlx"
)

// Comparison is how a store compares with the decoder's own blocks of a case.
type Comparison struct {
	Identical, Different, Missing int
	Findings                      []string // what differs or is missing, a line each
}

// Recorded reports whether the case has the decoder's own blocks, in the layout
// of spec.
func (c *Case) Recorded(spec omlx.Spec) bool {
	if spec.Format != c.spec.Format || spec.PoolState != c.spec.PoolState {
		return false
	}
	info, err := os.Stat(filepath.Join(c.Dir, "expected"))
	return err == nil && info.IsDir()
}

// Compare compares the blocks that the case places with those that the decoder
// wrote. A block that the decoder did not write is not counted.
func (c *Case) Compare(store string) (Comparison, error) {
	var out Comparison
	for k, h := range c.Plan(c.spec).Hashes {
		name := h.String()
		want := filepath.Join(c.Dir, "expected", name[:1], name+".safetensors")
		got := filepath.Join(store, name[:1], name+".safetensors")
		if _, err := os.Stat(want); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if _, err := os.Stat(got); errors.Is(err, fs.ErrNotExist) {
			out.Missing++
			out.Findings = append(out.Findings, fmt.Sprintf("block %d: missing: %s", k, got))
			continue
		}
		d, err := omlx.Compare(want, got)
		if err != nil {
			return out, fmt.Errorf("compare block %d: %w", k, err)
		}
		if d.Equal() {
			out.Identical++
			continue
		}
		out.Different++
		out.Findings = append(out.Findings, fmt.Sprintf("block %d: %s: %s", k, got, d))
	}
	return out, nil
}
