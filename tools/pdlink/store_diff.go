package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"pdlink/bridge/omlx"
)

// The results of a comparison of one block.
const (
	diffIdentical   = "identical"
	diffDifferent   = "different"
	diffOnlyA       = "only_a"
	diffOnlyB       = "only_b"
	diffUnreadableA = "unreadable_a"
	diffUnreadableB = "unreadable_b"
)

// diffJSON is one line of `pdlink store diff --json`.
type diffJSON struct {
	Event  string `json:"event"`
	Hash   string `json:"hash"`   // of an unreadable block: what its name says
	Result string `json:"result"` // one of the results above
	Detail string `json:"detail,omitempty"`
}

// diffSummary is its last line.
type diffSummary struct {
	Event     string `json:"event"`
	Identical int    `json:"identical"`
	Not       int    `json:"not_identical"`
}

func newStoreDiff(std streams) *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "diff A B",
		Short: "compare two stores, or two blocks",
		Long: `diff compares blocks of the same hash: headers parsed and compared but for
created_at and padding, data byte for byte. A and B are stores or block files.
Each block is identical, different, only_a, only_b, unreadable_a or unreadable_b;
all but identical are unexpected.

` + statusText,
		Args: wants(2, "A", "B"),
		RunE: func(c *cobra.Command, args []string) error {
			d := differ{std: std, asJSON: asJSON, sum: diffSummary{Event: "summary"}}
			return d.run(c.Context(), args[0], args[1])
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON, a block a line, and a summary")
	return c
}

// blocks are the blocks of a store, or a single one.
type blocks struct {
	order []string // by what they are called: the hash, or the name of an unreadable file
	path  map[string]string
	bad   map[string]error // why one cannot be read
}

// add takes a block in; twice the same hash counts once.
func (b *blocks) add(name, path string, err error) {
	if _, twice := b.path[name]; !twice {
		b.order = append(b.order, name)
	}
	b.path[name] = path
	if err != nil {
		b.bad[name] = err
	}
}

// blocksAt finds the blocks of a store, or a single block file. An error is the
// user's to mend, unless the store cannot be read.
func blocksAt(ctx context.Context, path string) (*blocks, error) {
	b := &blocks{path: map[string]string{}, bad: map[string]error{}}
	if info, err := os.Stat(path); err == nil && !info.IsDir() {
		one, err := omlx.ReadBlock(path)
		switch {
		case errors.Is(err, fs.ErrPermission):
			return nil, fmt.Errorf("block: %w", err)
		case err != nil:
			b.add(nameOf(path), path, err)
		default:
			b.add(one.Hash.String(), path, nil)
		}
		return b, nil
	}
	if err := checkStore(path); err != nil {
		return nil, err
	}
	err := omlx.List(path, func(e omlx.Entry) error {
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case e.Kind == omlx.EntryBlock && e.Err != nil:
			b.add(nameOf(e.Path), e.Path, e.Err)
		case e.Kind == omlx.EntryBlock:
			b.add(e.Hash.String(), e.Path, nil)
		}
		return nil
	})
	if err != nil {
		return nil, failed(err)
	}
	return b, nil
}

// nameOf is what the name of a block's file says.
func nameOf(path string) string { return strings.TrimSuffix(filepath.Base(path), blockSuffix) }

// differ compares blocks and counts.
type differ struct {
	std    streams
	asJSON bool
	sum    diffSummary
}

func (d *differ) run(ctx context.Context, pathA, pathB string) error {
	a, errA := blocksAt(ctx, pathA)
	b, errB := blocksAt(ctx, pathB)
	if err := errors.Join(errA, errB); err != nil {
		return err
	}
	for _, name := range a.order {
		if err := ctx.Err(); err != nil {
			return failed(err)
		}
		if err := d.block(name, a, b); err != nil {
			return err
		}
	}
	for _, name := range b.order {
		if _, both := a.path[name]; both {
			continue
		}
		err := d.unreadable(diffUnreadableB, name, b)
		if b.bad[name] == nil {
			err = d.say(diffJSON{Hash: name, Result: diffOnlyB})
		}
		if err != nil {
			return err
		}
	}
	if d.asJSON {
		if err := d.std.json(d.sum); err != nil {
			return err
		}
	} else {
		d.std.printf("%d identical, %d not\n", d.sum.Identical, d.sum.Not)
	}
	if d.sum.Not > 0 {
		return failed(nil)
	}
	return nil
}

// block compares a block of a with the one of b, which may lack it.
func (d *differ) block(name string, a, b *blocks) error {
	if a.bad[name] != nil || b.bad[name] != nil {
		return errors.Join(d.unreadable(diffUnreadableA, name, a), d.unreadable(diffUnreadableB, name, b))
	}
	other, both := b.path[name]
	if !both {
		return d.say(diffJSON{Hash: name, Result: diffOnlyA})
	}
	diff, err := omlx.Compare(a.path[name], other)
	switch {
	case err != nil: // it could be read a moment ago
		result := diffUnreadableA
		if _, err := omlx.ReadBlock(a.path[name]); err == nil {
			result = diffUnreadableB
		}
		return d.say(diffJSON{Hash: name, Result: result, Detail: err.Error()})
	case diff.Equal():
		return d.say(diffJSON{Hash: name, Result: diffIdentical})
	}
	return d.say(diffJSON{Hash: name, Result: diffDifferent, Detail: diff.String()})
}

// unreadable reports a block if it cannot be read.
func (d *differ) unreadable(result, name string, in *blocks) error {
	if err := in.bad[name]; err != nil {
		return d.say(diffJSON{Hash: name, Result: result, Detail: err.Error()})
	}
	return nil
}

// say reports one block.
func (d *differ) say(x diffJSON) error {
	good := x.Result == diffIdentical
	if good {
		d.sum.Identical++
	} else {
		d.sum.Not++
	}
	if d.asJSON {
		x.Event = "block"
		return d.std.json(x)
	}
	detail := ""
	if x.Detail != "" {
		detail = "  " + x.Detail
	}
	d.std.printf("%s  %s%s\n", x.Hash, d.std.verdict(x.Result, good), detail)
	return nil
}
