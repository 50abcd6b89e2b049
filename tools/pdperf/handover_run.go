package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"pdlink/rdma"
	"pdlink/tools/pdperf/stats"
)

// handing runs pdlink to hand blocks over.
type handing struct {
	program      string
	dir          string // for stores
	ours, theirs string // directories of keys, of the sender and the receiver
	encrypt      string
	at           string // where receivers listen
	io           streams

	want  string   // the store that every other one has to be like
	first replayed // what made it: the first run over memory
}

// replayed is what `pdlink replay --json` says, as far as it counts here.
type replayed struct {
	State      string  `json:"state"`
	Verdict    string  `json:"verdict"`
	Tokens     int     `json:"tokens"`
	Blocks     int     `json:"blocks"`
	Total      int     `json:"total"`
	Present    int     `json:"present"`
	Bytes      uint64  `json:"bytes"`
	Seconds    float64 `json:"seconds"`
	Compared   bool    `json:"compared"`
	Identical  int     `json:"identical"`
	Reconnects int     `json:"reconnects"`
	Links      []struct {
		Link   string `json:"link"`
		Sealed bool   `json:"sealed"`
	} `json:"links"`
}

// good is why a run does not count; nil: it does.
func (r *replayed) good(link string) error {
	switch {
	case r.State != "complete" || r.Blocks != r.Total || r.Total == 0:
		return fmt.Errorf("it ended %s", r.Verdict)
	case r.Present > 0 || r.Reconnects > 0:
		return fmt.Errorf("%d blocks were there before, and %d connections were lost", r.Present, r.Reconnects)
	case len(r.Links) != 1 || r.Links[0].Link != link:
		return fmt.Errorf("it did not go over %s alone", link)
	}
	return nil
}

// reference makes the store that others have to be like: over memory, and like the
// decoder's own where the case has those.
func (h *handing) reference(ctx context.Context, name string) error {
	h.want = filepath.Join(h.dir, "reference")
	if err := os.RemoveAll(h.want); err != nil {
		return err
	}
	r, err := h.replay(ctx, name, "--store", h.want)
	if err == nil {
		err = r.good("mem")
	}
	if err == nil && r.Compared && r.Identical != r.Total {
		err = fmt.Errorf("%d of %d blocks are the decoder's own", r.Identical, r.Total)
	}
	if err != nil {
		return err
	}
	h.first = r
	return nil
}

// measure hands a case over a link so many times. It is never the error of the command:
// another link may work.
func (h *handing) measure(ctx context.Context, name, link string, runs int) handed {
	row := handed{Event: "handover", Case: name, Link: link, Runs: runs}
	times := make([]float64, 0, runs)
	for i := range runs {
		r, err := h.first, error(nil)
		if i > 0 || link != "mem" {
			r, err = h.once(ctx, name, link)
		}
		if err != nil {
			row.Why = strings.TrimSpace(err.Error())
			return row
		}
		times = append(times, r.Seconds)
		row.Sealed, row.Tokens, row.Blocks, row.Bytes = r.Links[0].Sealed, r.Tokens, r.Blocks, r.Bytes
	}
	slices.Sort(times)
	row.Identical, row.Seconds, row.Least, row.Most = true, stats.Percentile(times, 50), times[0], times[len(times)-1]
	if row.Tokens > 0 {
		row.PerToken = row.Seconds * 1e3 / float64(row.Tokens)
	}
	return row
}

// once hands a case over, into an empty store that it compares and removes.
func (h *handing) once(ctx context.Context, name, link string) (r replayed, err error) {
	store, err := os.MkdirTemp(h.dir, "store-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(store) //nolint:errcheck // the directory above goes too
	if link == "mem" {
		r, err = h.replay(ctx, name, "--store", store)
	} else {
		r, err = h.between(ctx, name, link, store)
	}
	if err == nil {
		err = r.good(link)
	}
	if err != nil {
		return r, err
	}
	if out, err := exec.CommandContext(ctx, h.program, "store", "diff", h.want, store).CombinedOutput(); err != nil {
		return r, fmt.Errorf("its blocks are not those of mem: %w: %s", err, lastLine(out))
	}
	return r, nil
}

// between hands a case over from one process to another one.
func (h *handing) between(ctx context.Context, name, link, store string) (r replayed, err error) {
	listen := link + "://" + h.at
	if link == rdma.Scheme {
		listen += "?fallback=no"
	}
	to, end, err := h.receiver(ctx, "decode", "--json", "--listen", listen, "--store", store, "--keys", h.theirs, "--encrypt", h.encrypt)
	if err != nil {
		return r, err
	}
	to, _, _ = strings.Cut(to, "?")
	r, err = h.replay(ctx, name, "--to", to, "--require", link, "--retry", "0", "--keys", h.ours, "--encrypt", h.encrypt)
	return r, errors.Join(err, end())
}

// madeUp is what names of prompts begin with that are made up, at a real model's size:
// synthetic:MODEL:TOKENS.
const madeUp = "synthetic:"

// replay runs one command to its end.
func (h *handing) replay(ctx context.Context, name string, args ...string) (r replayed, err error) {
	args = append([]string{"replay", "--json"}, args...)
	if made, ok := strings.CutPrefix(name, madeUp); ok {
		model, tokens, _ := strings.Cut(made, ":")
		args = append(args, "--synthetic", model, "--tokens", tokens)
	} else {
		args = append(args, name)
	}
	cmd := exec.CommandContext(ctx, h.program, args...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	err = cmd.Run()
	if jerr := json.Unmarshal(out.Bytes(), &r); err != nil || jerr != nil {
		return r, fmt.Errorf("pdlink replay: %w: %s", errors.Join(err, jerr), lastLine(log.Bytes()))
	}
	return r, nil
}

// receiver starts a command that prints where it listens. end lets it end and says how
// it did.
func (h *handing) receiver(ctx context.Context, args ...string) (url string, end func() error, err error) {
	cmd := exec.CommandContext(ctx, h.program, args...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = childGrace
	var log bytes.Buffer
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	stop := time.AfterFunc(greeting, func() { cmd.Process.Kill() }) //nolint:errcheck // Wait says how it ended
	events := bufio.NewReaderSize(out, maxLine)
	line, _ := events.ReadSlice('\n') // a short or long line is no event
	stop.Stop()
	var l listening
	if json.Unmarshal(line, &l) != nil || l.Listen == "" {
		cmd.Process.Kill() //nolint:errcheck // the next line waits for its end
		err := cmd.Wait()
		if err == nil {
			err = errors.New("it ended")
		}
		return "", nil, fmt.Errorf("pdlink decode does not listen: %w: %s", err, lastLine(log.Bytes()))
	}
	return l.Listen, func() error {
		cmd.Process.Signal(syscall.SIGTERM)                               //nolint:errcheck // it may have ended
		stop := time.AfterFunc(childGrace, func() { cmd.Process.Kill() }) //nolint:errcheck // Wait says how it ended
		defer stop.Stop()
		io.Copy(io.Discard, events) //nolint:errcheck // events that the sender knows better
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("pdlink decode: %w: %s", err, lastLine(log.Bytes()))
		}
		return nil
	}, nil
}

// lastLine is what a program said last.
func lastLine(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return printable(lines[len(lines)-1])
}
