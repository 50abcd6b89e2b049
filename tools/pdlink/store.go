package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/fatih/color"
	"github.com/spf13/cobra"

	"pdlink/bridge/omlx"
)

func newStore(std streams) *cobra.Command {
	c := &cobra.Command{
		Use:   "store",
		Short: "look into a block store",
		Args:  cobra.NoArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newStoreList(std), newStoreShow(std), newStoreVerify(std), newStoreDiff(std))
	return c
}

// entryJSON is one line of `pdlink store ls --json`.
type entryJSON struct {
	Path        string    `json:"path"`
	Kind        string    `json:"kind"`
	Size        int64     `json:"size"`
	ModTime     time.Time `json:"mtime"`
	Hash        string    `json:"hash,omitempty"`
	Model       string    `json:"model,omitempty"`
	Format      string    `json:"format,omitempty"`
	Tokens      int       `json:"tokens,omitempty"`
	BlockTokens int       `json:"block_tokens,omitempty"`
	Layers      int       `json:"layers,omitempty"`
	Error       string    `json:"error,omitempty"`
}

func newStoreList(std streams) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "ls DIR",
		Short: "list what is in a store",
		Long: `ls lists the block files of a store, and everything else that lies beside them
and could surprise a decoder: temporary files, links, files that cannot be read.
Exit status 1 if a file that a decoder would look at cannot be used.`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return storeList(std, args[0], asJSON) },
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, one entry a line")
	return c
}

func storeList(std streams, dir string, asJSON bool) error {
	tw := tabwriter.NewWriter(std.out, 0, 0, 2, ' ', 0)
	blocks, bad, size := 0, 0, int64(0)
	if !asJSON {
		fmt.Fprintln(tw, "hash\tkind\tmodel\tformat\ttokens\tbytes\twritten")
	}
	err := omlx.List(dir, func(e omlx.Entry) error {
		if e.Err != nil {
			bad++
		} else if e.Kind == omlx.EntryBlock {
			blocks++
			size += e.Size
		}
		if asJSON {
			return std.json(entryOf(e))
		}
		if e.Err != nil {
			_, err := fmt.Fprintf(tw, "%s\t%s\t%s\n", e.Path, e.Kind, std.paint(e.Err.Error(), color.FgRed))
			return err
		}
		name := e.Hash.String()
		if e.Kind != omlx.EntryBlock {
			name = e.Path
		}
		_, err := fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d\t%d\t%s\n", name, e.Kind, e.Model, e.Format, e.Tokens, e.Size, e.ModTime.Format(time.DateTime))
		return err
	})
	if err != nil {
		return err
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if !asJSON {
		std.printf("%d blocks, %s, %d unusable\n", blocks, bytesText(uint64(size)), bad)
	}
	if bad > 0 {
		return &statusError{code: exitFailed}
	}
	return nil
}

func entryOf(e omlx.Entry) entryJSON {
	out := entryJSON{Path: e.Path, Kind: string(e.Kind), Size: e.Size, ModTime: e.ModTime}
	if e.Err != nil {
		out.Error = e.Err.Error()
		return out
	}
	if e.Kind == omlx.EntryBlock {
		out.Hash, out.Model, out.Format = e.Hash.String(), e.Model, e.Format
		out.Tokens, out.BlockTokens, out.Layers = e.Tokens, e.BlockTokens, e.Layers
	}
	return out
}
