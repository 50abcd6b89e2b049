package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"pdlink/bridge/cost"
	"pdlink/tools/linkkeys"
)

// costBytes is about how many bytes of blocks the longer of the lengths has that are
// measured when none is said: enough that what every transfer takes is a small part, few
// enough that a laptop's disk has room.
const costBytes = 256_000_000

// costLength is the longest length that is measured when none is said: the first row's.
const costLength = 25_000

// costAnswerLimit is how long an end may take for an order.
const costAnswerLimit = 30 * time.Minute

// costRunner has two ends do what is to be measured.
type costRunner struct {
	*costFlags
	args         []string // the case
	dir          string   // of stores and sockets
	ours, theirs string   // keys of the sender and the receiver
	remove       func()   // ends them
	sender       *costPeer
	receiver     *costPeer
	seed         uint64
}

// measured measures and makes the report.
func (f *costFlags) measured(ctx context.Context, std streams, args []string) (*cost.Report, error) {
	r := f.reportOf(args)
	c := &costRunner{costFlags: f, args: args}
	if err := c.open(ctx); err != nil {
		return nil, failed(err)
	}
	defer c.close()
	lengths, err := f.lengths(args, r)
	if err != nil {
		return nil, err
	}
	links, missing, err := c.available(ctx, r, lengths)
	if err != nil {
		return nil, failed(err)
	}
	r.Missing = append(r.Missing, missing...)
	if len(links) == 0 {
		return nil, failed(fmt.Errorf("no link can be measured: %s", missing[0].Why))
	}
	step, hide := std.progress("measure")
	defer hide()
	if err := c.rounds(ctx, r, links, lengths, c.once, step); err != nil {
		return nil, failed(err)
	}
	r.Made = c.sender.last.Made
	rows := cost.Lengths()
	if len(args) > 0 {
		rows = []int{links[0].Runs[0].Tokens}
	}
	list := make([]cost.Measured, len(links))
	for i, l := range links {
		list[i] = *l
	}
	if err := cost.Make(r, f.known.Engines, list, rows); err != nil {
		return nil, failed(err)
	}
	return r, nil
}

// lengths are the prompts that are measured; of a case, its own.
func (f *costFlags) lengths(args []string, r *cost.Report) ([]int, error) {
	if len(args) > 0 {
		return []int{0}, nil
	}
	o := costOrder{Model: f.model, Tokens: 1 << 16, Chunk: f.chunk}
	j, err := o.job()
	if err != nil {
		return nil, err
	}
	defer j.release()
	block := j.plan.Spec.BlockTokens
	r.Model, r.BlockTokens, r.Layers = j.plan.Spec.Model, block, j.plan.Spec.Layers
	r.BytesPerToken = float64(j.shape.BlockBytes) / float64(block)
	if len(f.measure) > 0 {
		for _, n := range f.measure {
			if n <= block {
				return nil, fmt.Errorf("--measure %d: a block is %d tokens, and one must be left for the decoder", n, block)
			}
		}
		return f.measure, nil
	}
	most := min(costLength, max(2*block, int(costBytes/r.BytesPerToken)))
	return []int{max(block, most/4/block*block) + 1, most/block*block + 1}, nil
}

// rounds measures every link at every length, one after the other, so many times: what
// disturbs the host disturbs all of them, and what drifts favours none, since each begins
// a round in its turn. A first round warms up, and is not counted.
func (c *costRunner) rounds(ctx context.Context, r *cost.Report, links []*cost.Measured, lengths []int, once onceFunc, step func(done, total int64)) error {
	total, done := int64((c.runs*len(lengths)+c.tails)*len(links)), int64(0)
	each := func(round, tokens int, pace float64) error {
		for i := range links {
			l := links[(round+i)%len(links)]
			run, err := once(ctx, l.Link, tokens, pace)
			if err != nil {
				return fmt.Errorf("%s, %d tokens: %w", l.Link, tokens, err)
			}
			l.Runs = append(l.Runs, run)
			done++
			step(done, total)
		}
		return nil
	}
	for round := range c.runs {
		for _, n := range lengths {
			if err := each(round, n, 0); err != nil {
				return err
			}
		}
	}
	if len(c.args) > 0 || len(c.known.Prefill) == 0 {
		return nil // a case's pieces come in an order of their own, and no other pace is known
	}
	chunk := max(1, c.chunk/r.BlockTokens) * r.BlockTokens
	for round := range c.tails {
		if err := each(round, chunk+1, c.known.Prefill.At(chunk)); err != nil {
			return err
		}
	}
	return nil
}

// onceFunc measures one transfer of a prompt; pace is as in costOrder.
type onceFunc func(ctx context.Context, link string, tokens int, pace float64) (cost.Run, error)

// available are the links that work here, warmed up, and those that this host cannot have.
func (c *costRunner) available(ctx context.Context, r *cost.Report, lengths []int) (links []*cost.Measured, missing []cost.Missing, err error) {
	for _, name := range c.links {
		_, err := c.once(ctx, name, lengths[0], 0)
		var not missingLinkError
		switch {
		case errors.As(err, &not):
			missing = append(missing, cost.Missing{Link: name, Why: not.why})
			continue
		case err != nil:
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		m := &cost.Measured{Link: name, Processes: 2}
		if name == schemeMem {
			m.Processes = 1
		}
		links = append(links, m)
	}
	if a := c.sender.last; a.Block > 0 {
		r.Model, r.BlockTokens, r.Layers, r.BytesPerToken = a.Model, a.Block, a.Layers, a.PerToken
	}
	return links, missing, nil
}

// missingLinkError is the error of a link that this host cannot have.
type missingLinkError struct{ why string }

// Error implements error.
func (e missingLinkError) Error() string { return e.why }

// once measures one transfer.
func (c *costRunner) once(ctx context.Context, link string, tokens int, pace float64) (run cost.Run, err error) {
	c.seed++
	o := costOrder{Model: c.model, Tokens: tokens, Seed: c.seed, Chunk: c.chunk, NoSync: c.noSync, Pace: pace}
	if len(c.args) > 0 {
		o.Case = c.args[0]
	}
	if !c.discard {
		if o.Store, err = os.MkdirTemp(c.dir, "store-"); err != nil {
			return run, err
		}
		defer os.RemoveAll(o.Store) //nolint:errcheck // the directory above goes too
	}
	before := readEnergy(raplRoot)
	sent, received, err := c.transfer(ctx, link, o)
	if err != nil {
		return run, err
	}
	run = cost.Run{
		Tokens: sent.Tokens, Blocks: sent.Blocks, Bytes: sent.Bytes, Paced: pace > 0, Seconds: sent.Seconds, Tail: sent.Tail,
		SenderCPU: sent.CPU, ReceiverCPU: received.CPU, Busy: sent.Busy, Spent: sent.Spent,
	}
	if j, ok := readEnergy(raplRoot).since(before); ok {
		run.Joules = &j
	}
	maps.Copy(run.Busy, received.Busy)
	maps.Copy(run.Spent, received.Spent)
	return run, nil
}

// transfer has the ends do it.
func (c *costRunner) transfer(ctx context.Context, link string, o costOrder) (sent, received costAnswer, err error) {
	if link == schemeMem {
		o.Do, o.Link = costSend, "mem://"
		sent, err = c.sender.tell(ctx, o)
		return sent, received, err
	}
	o.Do, o.Encrypt = costListen, linkkeys.EncryptOff
	at := net.JoinHostPort(c.at, "0")
	o.Keys = c.theirs
	switch link {
	case schemeUnix:
		o.Link, o.Keys = "unix://"+filepath.Join(c.dir, fmt.Sprintf("s%d", c.seed)), ""
	case schemeRDMA:
		o.Link = schemeRDMA + "://" + at + "?fallback=no"
	case "tcp+tls":
		o.Link, o.Encrypt = schemeTCP+"://"+at, "on"
	default:
		o.Link = schemeTCP + "://" + at
	}
	there, err := c.receiver.tell(ctx, o)
	if err != nil {
		return sent, received, err
	}
	o.Do, o.Link, o.Store = costSend, there.Listen, ""
	if o.Keys != "" {
		o.Keys = c.ours
	}
	sent, err = c.sender.tell(ctx, o)
	received, err2 := c.receiver.tell(ctx, costOrder{Do: costStop})
	if err = errors.Join(err, err2); err == nil && (sent.Link != o.scheme() || sent.Sealed != (link == "tcp+tls")) {
		err = fmt.Errorf("it went over %s, sealed: %v", sent.Link, sent.Sealed)
	}
	return sent, received, err
}

// scheme is that of the order's link.
func (o costOrder) scheme() string {
	scheme, _, _ := strings.Cut(o.Link, "://")
	return scheme
}

func (c *costRunner) open(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.dir, err = os.MkdirTemp(c.store, "pdlink-cost-"); err != nil {
		return err
	}
	if c.ours, c.theirs, c.remove, err = linkkeys.Temporary(); err != nil {
		return err
	}
	if c.sender, err = c.start(ctx); err != nil {
		return err
	}
	c.receiver, err = c.start(ctx)
	return err
}

// close ends the ends and removes what they left.
func (c *costRunner) close() {
	for _, p := range []*costPeer{c.sender, c.receiver} {
		if p != nil {
			p.end()
		}
	}
	if c.remove != nil {
		c.remove()
	}
	if c.dir != "" {
		os.RemoveAll(c.dir) //nolint:errcheck // the system's own clean-up takes what is left
	}
}

// costPeer is an end in a process of its own.
type costPeer struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
	log   costLog
	last  costAnswer // the last one of a transfer
}

// costLog is what an end says to people, the last of it. It may be used concurrently.
type costLog struct {
	mu   sync.Mutex // guards text
	text []byte
}

// maxCostLog bounds what is kept.
const maxCostLog = 4 << 10

// Write implements io.Writer.
func (l *costLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	if n := len(l.text) - maxCostLog; n > 0 {
		l.text = append(l.text[:0], l.text[n:]...)
	}
	return len(p), nil
}

// String is what was said.
func (l *costLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(string(l.text))
}

func (c *costRunner) start(ctx context.Context) (*costPeer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &costPeer{}
	p.cmd = exec.CommandContext(ctx, self, "cost", "end")
	p.cmd.Cancel = func() error { return p.cmd.Process.Signal(syscall.SIGTERM) }
	p.cmd.WaitDelay = 10 * time.Second
	p.cmd.Stderr = &p.log
	out, err1 := p.cmd.StdoutPipe()
	in, err2 := p.cmd.StdinPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, err
	}
	p.in, p.lines = in, bufio.NewScanner(out)
	p.lines.Buffer(nil, maxOrder)
	return p, p.cmd.Start()
}

// tell gives an order and returns the answer.
func (p *costPeer) tell(ctx context.Context, o costOrder) (a costAnswer, err error) {
	stop := time.AfterFunc(costAnswerLimit, func() { p.cmd.Process.Kill() }) //nolint:errcheck // the answer that is missing says it
	defer stop.Stop()
	if err := json.NewEncoder(p.in).Encode(o); err != nil {
		return a, errors.Join(ctx.Err(), fmt.Errorf("an end is gone: %w: %s", err, p.log.String()))
	}
	if !p.lines.Scan() {
		return a, errors.Join(ctx.Err(), p.lines.Err(), fmt.Errorf("an end is gone: %s", p.log.String()))
	}
	if err := json.Unmarshal(p.lines.Bytes(), &a); err != nil {
		return a, fmt.Errorf("an end says %.80q: %w", p.lines.Bytes(), err)
	}
	switch {
	case a.Missing:
		return a, missingLinkError{a.Error}
	case a.Error != "":
		return a, errors.New(a.Error)
	}
	if o.Do == costSend {
		p.last = a
	}
	return a, nil
}

// end ends the process: it does when nobody tells it anything any more.
func (p *costPeer) end() {
	p.in.Close()                                                            //nolint:errcheck // it may have ended
	stop := time.AfterFunc(30*time.Second, func() { p.cmd.Process.Kill() }) //nolint:errcheck // Wait waits for its end
	defer stop.Stop()
	p.cmd.Wait() //nolint:errcheck // what it had to say it said
}

// costHost is this host as far as its numbers depend on it.
func costHost() string {
	return fmt.Sprintf("%s/%s, %s", runtime.GOOS, runtime.GOARCH, count(runtime.NumCPU(), "core"))
}
