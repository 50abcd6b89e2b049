package replay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"pdlink/bridge/omlx"
)

// Comparison is how a store compares with the decoder's own blocks of a case: how
// many of those that the decoder wrote and the case places are the same, differ or
// are missing in the store. A block that the decoder did not write counts nowhere:
// there is nothing to compare it with.
type Comparison struct {
	Identical, Different, Missing int
	Findings                      []string // what differs or is missing, a line each
}

// Recorded reports whether the case has at least one of the decoder's own blocks
// that it places, in the layout of spec.
func (c *Case) Recorded(spec omlx.Spec) bool {
	if spec.Format != c.spec.Format || spec.PoolState != c.spec.PoolState {
		return false
	}
	return slices.ContainsFunc(c.Plan(c.spec).Hashes, func(h omlx.Hash) bool {
		info, err := os.Stat(blockPath(filepath.Join(c.Dir, "expected"), h))
		return err == nil && info.Mode().IsRegular()
	})
}

// blockPath returns where a store, or a case's copy of one, has a block.
func blockPath(store string, h omlx.Hash) string {
	name := h.String()
	return filepath.Join(store, name[:1], name+".safetensors")
}

// Compare compares the blocks that the case places with those that the decoder
// wrote, see Comparison. It fails if a file of either cannot be read as a block.
func (c *Case) Compare(store string) (Comparison, error) {
	var out Comparison
	for k, h := range c.Plan(c.spec).Hashes {
		want, got := blockPath(filepath.Join(c.Dir, "expected"), h), blockPath(store, h)
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
