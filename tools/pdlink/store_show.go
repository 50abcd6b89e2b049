package main

import (
	"fmt"
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
		Use:   "show FILE",
		Short: "show one block",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			b, err := omlx.ReadBlock(args[0])
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
		fmt.Fprintf(tw, "  layer %d\t%s\t%s\n", i, l.Type, note)
	}
	for _, t := range b.Tensors {
		fmt.Fprintf(tw, "  %s\t%s\t%v\t%d bytes\n", t.Name, t.DType, t.Shape, t.Size())
	}
	keys := make([]string, 0, len(b.Meta))
	for k := range b.Meta {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		fmt.Fprintf(tw, "  %s\t%s\n", k, b.Meta[k])
	}
	return tw.Flush()
}
