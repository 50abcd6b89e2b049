package prefill

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"pdlink/bridge"
	"pdlink/bridge/front"
	"pdlink/bridge/omlx"
	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

// script is an engine whose work a test says.
type script struct {
	mu      sync.Mutex
	models  []string
	down    error
	read    func(ctx context.Context, p Prompt) error
	prompts []Prompt
}

func (e *script) Models(context.Context) ([]string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.models, e.down
}

func (e *script) Prefill(ctx context.Context, p Prompt) error {
	e.mu.Lock()
	e.prompts = append(e.prompts, p)
	e.mu.Unlock()
	return e.read(ctx, p)
}

func (e *script) set(down error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.down = down
}

func (e *script) asked() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.prompts)
}

// redial dials until it is told not to.
type redial struct {
	link transport.Link
	mu   sync.Mutex
	lost int
	dead bool
}

func (r *redial) die() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dead = true
}

func (r *redial) mend() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dead = false
}

func (r *redial) Dial(ctx context.Context) (transport.Conn, error) {
	for {
		r.mu.Lock()
		dead := r.dead
		r.mu.Unlock()
		err := errors.New("no cable")
		if !dead {
			var c transport.Conn
			if c, err = r.link.Dial(ctx, "decoder"); err == nil {
				return c, nil
			}
		}
		if ctx.Err() != nil {
			return nil, errors.Join(ctx.Err(), err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (r *redial) Wait(_ context.Context, cause error) error { return cause }

func (r *redial) Lost(transport.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lost++
}

func (r *redial) Done(transport.Conn) {}

func (r *redial) Progress() {}

// pair is a decode host and a prefill host, whose engine the test plays.
type pair struct {
	*decoder
	t       *testing.T
	hosts   *front.Hosts
	server  *Server
	socket  string
	service *Service
	engine  *script
	dialler *redial
	waits   waits
	name    string
	stop    func() // the prefill host; idempotent

	late chan error // transfers are opened, or not, when it says so; nil: at once; guarded by mu

	mu      sync.Mutex
	engines []front.Engine
	halted  []string // what hosts wait for that take no calls yet
	ended   []Ended
	ready   []Readiness
}

func newPair(t *testing.T, so session.Options, o ServiceOptions) *pair {
	t.Helper()
	p := &pair{t: t, engine: &script{models: []string{"m"}}}
	var err error
	p.hosts, err = front.NewHosts(front.HostsOptions{Add: p.add, Waits: p.halt, Rejoin: 2 * time.Second})
	must(t, err)
	p.decoder = newDecoderWith(t, bridge.Options{OnBlock: p.hosts.Block, PartWait: 5 * time.Second}, so)
	p.attend = p.hosts.Attend
	o.Engine = p.engine
	p.serve(so, o)
	return p
}

// another is a second prefill host for the same decode host. With an engine it is the
// first one's.
func (p *pair) another(o ServiceOptions) *pair {
	p.t.Helper()
	second := &pair{t: p.t, decoder: p.decoder, hosts: p.hosts, engine: p.engine, waits: waits{end: 100 * time.Millisecond}}
	second.serve(session.Options{}, o)
	return second
}

// serve starts the prefill host.
func (p *pair) serve(so session.Options, o ServiceOptions) {
	t := p.t
	t.Helper()
	p.socket = filepath.Join(t.TempDir(), "engine.sock")
	var err error
	p.server, err = Listen(t.Context(), Options{Socket: p.socket, Slots: 32, SlotSize: 64<<10 + transport.HeaderRoom, MemFloor: -1, waits: p.waits})
	must(t, err)
	p.name = o.Name
	p.dialler = &redial{link: p.link.With(mem.Options{Session: session.Options{Name: o.Name, SendRing: p.server.Ring(), MaxMeta: so.MaxMeta}})}
	keeper := NewKeeper(p.dialler, 5*time.Second)
	o.Server, o.probe = p.server, 5*time.Millisecond
	o.Open = func(ctx context.Context, r transport.Request, shape bridge.Shape) (Carrier, int, error) {
		p.mu.Lock()
		late := p.late
		p.mu.Unlock()
		if late != nil {
			if err := <-late; err != nil {
				return nil, 0, err
			}
		}
		return keeper.Open(ctx, r, shape)
	}
	o.OnResult = func(e Ended) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ended = append(p.ended, e)
	}
	o.OnReady = func(r Readiness) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.ready = append(p.ready, r)
	}
	p.service, err = NewService(o)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := keeper.Run(ctx, p.service.Serve); !errors.Is(err, context.Canceled) {
			t.Errorf("the keeper ended with %v", err)
		}
	})
	p.stop = sync.OnceFunc(func() {
		must(t, p.service.Close())
		cancel()
		wg.Wait()
		must(t, p.server.Close())
		if n := p.server.Ring().InUse(); n != 0 {
			t.Errorf("%d slots are still in use", n)
		}
	})
	t.Cleanup(func() {
		must(t, p.hosts.Close()) // first: calls end
		p.stop()
	})
}

func (p *pair) add(e front.Engine) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.engines = append(p.engines, e)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.engines = slices.DeleteFunc(p.engines, func(x front.Engine) bool { return x == e })
	}
}

// halt is told of a host that takes no calls yet.
func (p *pair) halt(name, why string) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	text := name + ": " + why
	p.halted = append(p.halted, text)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if i := slices.Index(p.halted, text); i >= 0 {
			p.halted = slices.Delete(p.halted, i, i+1)
		}
	}
}

// waitsFor reports that one host waits, for that.
func (p *pair) waitsFor(text string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Equal(p.halted, []string{text})
}

func (p *pair) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.engines)
}

// host is the engine that the front has, once there is one.
func (p *pair) host() front.Engine {
	p.t.Helper()
	eventually(p.t, "the host is announced", func() bool { return p.count() > 0 })
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.engines[len(p.engines)-1]
}

// last is the last call that ended.
func (p *pair) last() Ended {
	p.t.Helper()
	eventually(p.t, "a call ends", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.ended) > 0 })
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ended[len(p.ended)-1]
}

// idle waits until nothing of a call is left.
func (p *pair) idle() {
	p.t.Helper()
	eventually(p.t, "nothing of a call is left", func() bool {
		p.service.mu.Lock()
		defer p.service.mu.Unlock()
		return len(p.service.jobs) == 0 && p.service.serving == 0 && p.server.Ring().InUse() == 0
	})
}

func (p *pair) connected() bool {
	p.decoder.mu.Lock()
	defer p.decoder.mu.Unlock()
	return len(p.conns) > 0
}

// cut ends all connections from the decode host's side.
func (p *pair) cut() {
	p.decoder.mu.Lock()
	conns := p.conns
	p.conns = nil
	p.decoder.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

// cutOff ends this host's connection from the decode host's side; there is no other one
// until its dialler is mended.
func (p *pair) cutOff() {
	p.dialler.die()
	p.decoder.mu.Lock()
	var ours []transport.Conn
	p.conns = slices.DeleteFunc(p.conns, func(c transport.Conn) bool {
		mine := c.Facts().Peer == p.name
		if mine {
			ours = append(ours, c)
		}
		return mine
	})
	p.decoder.mu.Unlock()
	for _, c := range ours {
		c.Close()
	}
}

// ask is a prompt of blocks, and the job that asks for it.
func (p *pair) ask(blocks int) (*prompt, front.Job) {
	p.t.Helper()
	x := p.newPrompt(p.t, fmt.Sprint("prompt ", blocks), blocks)
	spec := kvSpec()
	ids := make([]uint32, blocks*spec.BlockTokens)
	signed := make([]int32, len(ids))
	for i := range ids {
		ids[i], signed[i] = uint32(i), int32(i)
	}
	plan := omlx.Plan{Spec: spec, Hashes: omlx.Chain(spec.Model, spec.BlockTokens, ids, nil)}
	meta, err := plan.MarshalBinary()
	must(p.t, err)
	p.decoder.mu.Lock()
	p.stocks[string(meta)] = x.stock
	p.decoder.mu.Unlock()
	return x, front.Job{Transfer: x.id, Plan: front.Plan{
		Model: "m", Tokens: len(ids) + 1, Block: spec.BlockTokens, Blocks: blocks, IDs: signed, Kind: "omlx", Meta: meta, Key: "k",
	}}
}

// reads lets a worker of the engine send blocks [0, n) of a prompt, all there are for
// n 0. between is called before each; nil: nothing.
func (p *pair) reads(c *client, x *prompt, n int, between func(block int)) func(context.Context, Prompt) error {
	return func(_ context.Context, ask Prompt) error {
		if ask.Transfer != x.id || ask.Model != "m" || len(ask.IDs) != len(x.blocks)*16 || ask.IDs[17] != 17 {
			return fmt.Errorf("%w: asked for %+v", ErrEngine, ask)
		}
		h, why, _, arrays := c.begin(begin{Transfer: x.id, PromptTokens: uint32(len(ask.IDs)), Mode: modePieces, DType: dtypeBF16})
		if why != codeOK {
			return fmt.Errorf("%w: begin: %v", ErrEngine, why)
		}
		if n == 0 {
			n = len(x.blocks)
		}
		for b := range n {
			if between != nil {
				between(b)
			}
			l, why := c.lease(h, uint32(b), 5*time.Second)
			if why != codeOK {
				return fmt.Errorf("%w: no slot for block %d: %v", ErrEngine, b, why)
			}
			cm := c.filled(x, l, headRuns(b, arrays, 0, 1)...)
			c.say(typeCommit, h, &cm)
		}
		c.end(h, n*16)
		return nil
	}
}
