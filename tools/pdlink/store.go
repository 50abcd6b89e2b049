package main

import (
	"context"
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
		Long: `store lists, shows, checks and compares the blocks of a decoder's store. It
changes nothing.

` + statusText,
		Args: group,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newStoreList(std), newStoreShow(std), newStoreVerify(std), newStoreDiff(std))
	return c
}

// entryJSON is one line of `pdlink store ls --json`.
type entryJSON struct {
	Event       string    `json:"event"`
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

// listSummary is its last line.
type listSummary struct {
	Event     string `json:"event"`
	Blocks    int    `json:"blocks"` // that can be used
	Bytes     int64  `json:"bytes"`  // of them
	Bad       int    `json:"bad"`    // files that a decoder would look at and cannot use
	Temp      int    `json:"temp"`   // temporary files, pdlink's and the decoder's
	TempBytes int64  `json:"temp_bytes"`
	Other     int    `json:"other"` // links, and what is no block at all
}

func newStoreList(std streams) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "ls DIR",
		Short: "list what is in a store",
		Long: `ls lists the block files of a store, and everything else that lies beside them
and could surprise a decoder: temporary files, links, files that cannot be read.
A file that a decoder would look at and cannot use is an unexpected result.

` + statusText,
		Args: wants(1, "DIR"),
		RunE: func(c *cobra.Command, args []string) error { return storeList(c.Context(), std, args[0], asJSON) },
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, one entry a line, and a summary")
	return c
}

func storeList(ctx context.Context, std streams, dir string, asJSON bool) error {
	if err := checkStore(dir); err != nil {
		return err
	}
	sum := listSummary{Event: "summary"}
	tw := tabwriter.NewWriter(std.out, 0, 0, 2, ' ', 0)
	if !asJSON {
		fmt.Fprintln(tw, "hash\tkind\tmodel\tformat\ttokens\tbytes\twritten")
	}
	var bad []omlx.Entry
	err := omlx.List(dir, func(e omlx.Entry) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		sum.add(e)
		if asJSON {
			return std.json(entryOf(e))
		}
		if e.Err != nil {
			bad = append(bad, e)
		}
		printEntry(tw, e)
		return nil
	})
	if err != nil {
		return failed(err)
	}
	if asJSON {
		if err := std.json(sum); err != nil {
			return err
		}
	} else if err := sum.print(std, tw, bad); err != nil {
		return err
	}
	if sum.Bad > 0 {
		return failed(nil)
	}
	return nil
}

// add counts an entry.
func (s *listSummary) add(e omlx.Entry) {
	switch {
	case e.Err != nil:
		s.Bad++
	case e.Kind == omlx.EntryBlock:
		s.Blocks++
		s.Bytes += e.Size
	case e.Kind == omlx.EntryPart || e.Kind == omlx.EntryTemp:
		s.Temp++
		s.TempBytes += e.Size
	default:
		s.Other++
	}
}

// print ends the table and says what it came to.
func (s *listSummary) print(std streams, tw *tabwriter.Writer, bad []omlx.Entry) error {
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, e := range bad {
		std.printf("%s: %s: %v\n", std.paint("unusable", color.FgRed), e.Path, e.Err)
	}
	std.printf("%s, %s, %d unusable", count(s.Blocks, "block"), bytesText(uint64(s.Bytes)), s.Bad)
	if s.Temp > 0 {
		std.printf("; %s, %s", count(s.Temp, "temporary file"), bytesText(uint64(s.TempBytes)))
	}
	if s.Other > 0 {
		std.printf("; %d other", s.Other)
	}
	std.printf("\n")
	return nil
}

// printEntry writes an entry's row. What is no block, or none that can be read,
// has a path and no facts.
func printEntry(tw *tabwriter.Writer, e omlx.Entry) {
	name, model, format, tokens := e.Path, "-", "-", "-"
	if e.Kind == omlx.EntryBlock && e.Err == nil {
		name, model, format, tokens = e.Hash.String(), e.Model, e.Format, fmt.Sprint(e.Tokens)
	}
	printTo(tw, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", name, e.Kind, model, format, tokens, e.Size, e.ModTime.Format(time.DateTime))
}

func entryOf(e omlx.Entry) entryJSON {
	out := entryJSON{Event: "entry", Path: e.Path, Kind: string(e.Kind), Size: e.Size, ModTime: e.ModTime}
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
