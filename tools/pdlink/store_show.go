package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"pdlink/bridge/omlx"
	"pdlink/kernels/safetensors"
)

// blockJSON is what `pdlink store show --json` prints.
type blockJSON struct {
	Path        string            `json:"path"`
	Hash        string            `json:"hash"`
	Format      string            `json:"format"`
	Model       string            `json:"model"`
	Tokens      int               `json:"tokens"`
	BlockTokens int               `json:"block_tokens"`
	DataOffset  int64             `json:"data_offset"`
	Layers      []layerJSON       `json:"layers"`
	Meta        map[string]string `json:"metadata"`
	Tensors     []tensorJSON      `json:"tensors"`
}

type layerJSON struct {
	Type        string   `json:"type"`
	Placeholder bool     `json:"placeholder,omitempty"`
	Members     []string `json:"members"`
}

type tensorJSON struct {
	Name  string  `json:"name"`
	DType string  `json:"dtype"`
	Shape []int64 `json:"shape"`
	Begin int64   `json:"begin"`
	End   int64   `json:"end"`
}

func newStoreShow(std streams) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "show {FILE | DIR HASH}",
		Short: "show one block",
		Long: `show prints what one block says about itself: its file, or a store and the hash
of the block in it. The first digits of the hash are enough where no other block
of the store begins with them.

` + statusText,
		Args: wants(1, "FILE or DIR", "HASH"),
		RunE: func(_ *cobra.Command, args []string) error {
			path, err := blockFile(args)
			if err != nil {
				return err
			}
			b, err := omlx.ReadBlock(path)
			if err != nil {
				return failed(err)
			}
			if asJSON {
				return std.json(describe(b))
			}
			return printBlock(std, b)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// blockFile is the file of the block that a command line names. An error is the
// user's to mend.
func blockFile(args []string) (string, error) {
	path := args[0]
	if len(args) == 2 {
		if err := checkStore(path); err != nil {
			return "", err
		}
		return findBlock(path, args[1])
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", fmt.Errorf("block: %w", err)
	case info.IsDir():
		return "", fmt.Errorf("%s is a directory: name a block's file, or say which block of it: `pdlink store show %s HASH`", path, path)
	}
	return path, nil
}

// findBlock finds the only block of a store whose hash begins with digits.
func findBlock(dir, digits string) (string, error) {
	digits = strings.TrimSuffix(strings.ToLower(digits), blockSuffix)
	if digits == "" || strings.Trim(digits, storeFolders) != "" {
		return "", fmt.Errorf("hash %q: want hex digits", digits)
	}
	folder := filepath.Join(dir, digits[:1])
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("block store: %w", err)
	}
	var found []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), digits) && strings.HasSuffix(e.Name(), blockSuffix) {
			found = append(found, e.Name())
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("no block of %s begins with %s: `pdlink store ls` lists them", dir, digits)
	case 1:
		return filepath.Join(folder, found[0]), nil
	}
	return "", fmt.Errorf("%d blocks of %s begin with %s: give more digits", len(found), dir, digits)
}

func describe(b *omlx.Block) blockJSON {
	out := blockJSON{
		Path: b.Path, Hash: b.Hash.String(), Format: b.Format, Model: b.Model, Tokens: b.Tokens,
		BlockTokens: b.BlockTokens, DataOffset: b.DataOffset, Meta: b.Meta,
		Tensors: make([]tensorJSON, 0, len(b.Tensors)),
	}
	for _, l := range b.Layers {
		out.Layers = append(out.Layers, layerJSON{Type: l.Type, Placeholder: l.Placeholder, Members: members(l)})
	}
	for _, t := range b.Tensors {
		out.Tensors = append(out.Tensors, tensorOf(t))
	}
	return out
}

func tensorOf(t safetensors.Tensor) tensorJSON {
	return tensorJSON{Name: t.Name, DType: string(t.DType), Shape: t.Shape, Begin: t.Begin, End: t.End}
}

// members describes a layer's states in a word each.
func members(l omlx.BlockLayer) []string {
	out := make([]string, 0, len(l.States))
	for _, s := range l.States {
		text := fmt.Sprintf("%s:%d", s.Class, len(s.Elements))
		if s.Delta {
			text += fmt.Sprintf("[%d,%d)", s.Start, s.End)
		}
		out = append(out, text)
	}
	return out
}

func printBlock(std streams, b *omlx.Block) error {
	std.printf("%s\n  block   %s\n  model   %s, format %s\n  tokens  %d of a block of %d\n", b.Path, b.Hash, b.Model, b.Format, b.Tokens, b.BlockTokens)
	tw := tabwriter.NewWriter(std.out, 2, 0, 2, ' ', 0)
	for i, l := range b.Layers {
		note := strings.Join(members(l), " ")
		if l.Placeholder {
			note = "placeholder"
		}
		printTo(tw, "  layer %d\t%s\t%s\n", i, l.Type, note)
	}
	for _, t := range b.Tensors {
		printTo(tw, "  %s\t%s\t[%s]\t%d bytes\n", t.Name, t.DType, listText(t.Shape), t.Size())
	}
	keys := make([]string, 0, len(b.Meta))
	for k := range b.Meta {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		printTo(tw, "  %s\t%s\n", k, b.Meta[k])
	}
	return tw.Flush()
}
