package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"

	"pdlink/bridge/trace"
	"pdlink/bridge/watch/pages"
	"pdlink/tools/cmdline"
)

// look looks at what would end a command at its start: a timeline that cannot be written, a
// token that cannot be read, an address that cannot be listened on.
func (f *watchFlags) look(ctx context.Context) (found []finding) {
	if f.trace != "" {
		if err := trace.Check(f.trace); err != nil {
			found = append(found, bad(fmt.Sprintf("--trace: %v", err), "name a file in a directory that is there and this user's"))
		} else {
			found = append(found, good("the timeline can be written to %s", f.trace))
		}
	}
	if f.at == nil {
		return found
	}
	if _, err := f.readToken(); err != nil {
		return append(found, bad(cmdline.Plain(err), "name a file that this user alone can read, with one line in it"))
	}
	return append(found, f.lookPages(ctx))
}

// lookPages looks whether the live page's address can be listened on.
func (f *watchFlags) lookPages(ctx context.Context) finding {
	l, err := f.at.Listen(ctx)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return doubt(fmt.Sprintf("--metrics %s: it is in use, which is so while the command runs", f.metrics), "if it does not run: "+listenCure("metrics", f.at.Text, err))
	case err != nil:
		return bad(fmt.Sprintf("--metrics %s: %v", f.metrics, err), listenCure("metrics", f.at.Text, err))
	}
	defer l.Close() // nobody has connected
	if !pages.Reachable(l) || f.token != "" {
		return good("--metrics %s is free", f.metrics)
	}
	if f.everybody {
		return doubt(fmt.Sprintf("--metrics %s: other hosts can reach this address, and whoever does sees names of models, peers and the store", f.metrics), "give --metrics-token FILE in the place of --metrics-open, unless everybody may read them")
	}
	return bad(cmdline.Plain(f.reach(l, nil)), "give --metrics a port alone, which is on loopback, or a token")
}

// written are the directories that a command writes to for who watches it, by flag.
func (f *watchFlags) written() (dirs map[string]string) {
	dirs = make(map[string]string)
	if f.trace != "" {
		dirs["trace"] = filepath.Dir(f.trace)
	}
	if f.at != nil && f.at.Network == "unix" {
		dirs["metrics"] = filepath.Dir(f.at.Text)
	}
	return dirs
}
