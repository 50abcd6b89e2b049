package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"pdlink/bridge/prefill"
	"pdlink/bridge/prefill/calls"
	"pdlink/bridge/trace"
	"pdlink/kernels"
	"pdlink/tools/cmdline"
	"pdlink/tools/linkkeys"
	"pdlink/transport"
	"pdlink/transport/failover"
	"pdlink/transport/session"
)

// prefillFlags are the flags of `pdlink prefill`.
type prefillFlags struct {
	to                   []string
	engine, socket, name string
	group, rank          string
	slots                int
	models               []string
	uids                 []uint
	memFloor             int
	leaseWait, retry     time.Duration
	weights, config      string
	numerics             string
	asJSON               bool
	keys                 linkkeys.Flags
	watching             watchFlags

	// What check made of them.
	ways      []linkURL // to the decode host, the preferred one first; at least one
	engineURL *url.URL  // nil: another host of the group asks the engine
	mapped    map[string]string
	member    *calls.Group // nil: there is no group
}

// What the flags stand at, which is what prefill.Options would take for 0.
const (
	defaultSlots     = 192
	defaultMemFloor  = 2048 // MiB
	defaultLeaseWait = 250 * time.Millisecond
)

// engineKeyEnv has the engine's API key: on a command line everybody could read it.
// vLLM reads the same.
const engineKeyEnv = "VLLM_API_KEY"

const prefillLong = `prefill runs on a host that prefills, beside its engine. It keeps a connection to
"pdlink decode", takes the prompts that come over it, has the engine read them, and
sends the blocks that the engine's workers put into shared memory. The engine need
not be reachable for others than this host.

It can be started before or after the engine and the decoder. It says what it waits
for, and takes prompts when the engine answers at --engine and a worker of it has
connected to --socket. vLLM needs the connector of pdlink-vllm for that, with the
same socket:

  vllm serve MODEL --kv-transfer-config '{"kv_connector": "PDLinkConnector",
    "kv_connector_module_path": "pdlink_vllm.connector", "kv_role": "kv_producer",
    "kv_connector_extra_config": {"socket": "/run/pdlink/engine.sock"}}'

A prompt is read only by the model that is meant: the engine's of the same id, or
the one that --model names. Blocks of another one would be wrong without an error.

An engine whose workers are on several hosts (vLLM with --nnodes, tensor or pipeline
parallel) has a pdlink prefill on each of them, with the same --group and its own
--rank: 0/2 on the host with the engine's API, which alone has --engine, 1/2 on the
other. Each sends what the workers on its host make; prompts are taken while all of
them are connected.

The connection is made again as often as it is lost. Several --to are ways to the same
decode host, the preferred one first: rdma://, then tcp://, for example. A prompt that is being read then
waits for it for --retry. If the engine needs an API key it is read from
$` + engineKeyEnv + `.

One line is printed for each prompt, and one when it changes what is waited for. With
--metrics a live page shows more, and figures for Prometheus are at /metrics on that port;
an address that other hosts can reach needs --metrics-token or --metrics-open.

Exit status: 0 it ran and was interrupted; 1 it cannot go on (the decode host does not
accept this host's key, for example); 2 the command line cannot be used.`

// command is the command whose flags these are.
func (f *prefillFlags) command(std streams) *cobra.Command {
	c := &cobra.Command{
		Use:   "prefill --to URL",
		Short: "read prompts for a decoder with this host's engine",
		Long:  prefillLong,
		Example: `  pdlink prefill --to tcp://10.0.0.5:7411 --model Qwen3-32B-8bit=Qwen/Qwen3-32B
  pdlink prefill --to tcp://10.0.0.5:7411 --engine http://127.0.0.1:8000 --socket /run/pdlink/engine.sock
  pdlink prefill --to tcp://10.0.0.5:7411 --group qwen --rank 0/2     # on the host with vLLM's API
  pdlink prefill --to tcp://10.0.0.5:7411 --group qwen --rank 1/2     # on the other one`,
		Args: wants(0),
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(flagsOf(c)); err != nil {
				return err
			}
			return f.run(c.Context(), std, flagsOf(c))
		},
	}
	fl := c.Flags()
	fl.StringArrayVar(&f.to, "to", nil, "where pdlink decode listens, `URL` (tcp://host:port, rdma://host:port, unix://path); may be repeated: other ways to the same one, the preferred one first")
	fl.StringVar(&f.engine, "engine", "http://127.0.0.1:8000", "the engine's own API, `URL`")
	fl.StringVar(&f.socket, "socket", defaultSocket, "where the engine's workers connect, `PATH`; the directory must be there")
	fl.StringVar(&f.name, "name", linkkeys.HostName(), "what this host is called in records")
	fl.StringVar(&f.group, "group", "", "this host has workers of an engine that is spread over several: its `NAME`, the same on all of them")
	fl.StringVar(&f.rank, "rank", "", "with --group: which of the N hosts this is, `I/N` (from 0); rank 0 is the one with the engine's API")
	fl.IntVar(&f.slots, "slots", defaultSlots, fmt.Sprintf("slots of shared memory, each of %d KiB", transport.DefaultSlot>>10))
	fl.StringArrayVar(&f.models, "model", nil, "`DECODER=ENGINE`: the decoder's model of that id is the engine's of that one; may be repeated")
	fl.UintSliceVar(&f.uids, "uid", nil, "user `ID` whose workers are accepted beside this one's; may be repeated")
	fl.IntVar(&f.memFloor, "mem-floor", defaultMemFloor, "free memory in `MiB` below which prompts are cut short; negative is none")
	fl.DurationVar(&f.leaseWait, "lease-wait", defaultLeaseWait, "the longest that a worker waits for a slot; negative is not at all")
	fl.DurationVar(&f.retry, "retry", failover.DefaultWindow, "how long a prompt waits for a lost connection without progress")
	fl.StringVar(&f.weights, "weights", "", "for DeepSeek-V4: the decoder's projection weights, `FILE` (from `pdlink-vllm weights export`)")
	fl.StringVar(&f.config, "model-config", "", "with --weights: the model's config.json, `FILE`")
	fl.StringVar(&f.numerics, "numerics", kernels.MLXMetal.String(), "with --weights: the decoder's roundings, mlx-metal, mlx-cpu or ideal")
	fl.BoolVar(&f.asJSON, "json", false, "print events as JSON, one a line")
	must(c.MarkFlagFilename("socket"))
	must(c.MarkFlagFilename("weights", "safetensors"))
	must(c.MarkFlagFilename("model-config", "json"))
	f.keys.Register(c, true)
	f.watching.register(c)
	cmdline.OnlyWith(c, []string{"model-config", "numerics"}, "weights")
	return c
}

// check looks at the command line.
func (f *prefillFlags) check(g given) error {
	err := errors.Join(
		missing(f.to, g),
		g.filled(map[string]string{
			"to": strings.Join(f.to, " "), "engine": f.engine, "socket": f.socket, "keys": f.keys.Dir, "peer": f.keys.Peer, "weights": f.weights, "model-config": f.config,
			"group": f.group, "rank": f.rank,
		}),
		f.keys.Check())
	if err == nil && f.weights == "" {
		err = g.unused("is for --weights", "model-config", "numerics")
	}
	if err != nil {
		return err
	}
	var errs []error
	if f.weights != "" && f.config == "" {
		errs = append(errs, errors.New("--weights needs --model-config FILE, the model's config.json: it has the model's shape"))
	}
	if f.retry <= 0 {
		errs = append(errs, fmt.Errorf("--retry %v: want a time", f.retry))
	}
	if f.slots < 0 {
		errs = append(errs, fmt.Errorf("--slots %d: want a number of slots, or 0 for %d", f.slots, defaultSlots))
	}
	for _, id := range f.uids {
		if id >= noUser {
			errs = append(errs, fmt.Errorf("--uid %d: want a user's number below %d", id, uint32(noUser)))
		}
	}
	errs = append(errs, f.parseEngine(g), f.watching.check(g))
	f.mapped, err = parseModels(f.models)
	return errors.Join(append(errs, err, f.parseRoutes())...)
}

// noUser is the first number that no user can have.
const noUser = 1<<32 - 1

// parseEngine reads what says which engine it is.
func (f *prefillFlags) parseEngine(g given) (err error) {
	if f.member, err = parseGroup(f.group, f.rank, f.name); err != nil {
		return err
	}
	if f.member == nil || f.member.Leads {
		f.engineURL, err = parseHTTP("engine", f.engine)
	} else if g("engine") {
		err = fmt.Errorf("--engine %s with --rank %s: only rank 0 of a group asks the engine: leave it out here", f.engine, f.rank)
	}
	return err
}

// parseHTTP reads the URL of an HTTP server.
func parseHTTP(flag, text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("--%s %q: want http://host:port, for example http://127.0.0.1:8000", flag, text)
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "/"), "/v1")
	return u, nil
}

// parseGroup reads --group and --rank; nil where there are none.
func parseGroup(name, rank, host string) (*calls.Group, error) {
	switch {
	case name == "" && rank == "":
		return nil, nil
	case name == "":
		return nil, fmt.Errorf("--rank %s is for --group NAME, the engine that this host has workers of", rank)
	case rank == "":
		return nil, fmt.Errorf("--group %s needs --rank I/N: which of its N hosts this is, 0/2 for the first of two", name)
	}
	i, n, ok := strings.Cut(rank, "/")
	g := &calls.Group{Name: name}
	var errI, errN error
	g.Member, errI = strconv.Atoi(i)
	g.Members, errN = strconv.Atoi(n)
	if !ok || errI != nil || errN != nil || g.Members < 2 || g.Members > transport.MaxParts || g.Member < 0 || g.Member >= g.Members {
		return nil, fmt.Errorf("--rank %q: want I/N, with N from 2 to %d and I from 0 to N-1, for example 0/2", rank, transport.MaxParts)
	}
	g.Leads = g.Member == 0
	if _, err := (calls.Host{Name: host, Group: g}).Encode(); err != nil {
		return nil, fmt.Errorf("--group: %w", err)
	}
	return g, nil
}

// parseModels reads --model.
func parseModels(list []string) (map[string]string, error) {
	models := make(map[string]string, len(list))
	for _, x := range list {
		decoder, engine, ok := strings.Cut(x, "=")
		if !ok || decoder == "" || engine == "" {
			return nil, fmt.Errorf("--model %q: want DECODER=ENGINE, the two ids of one model", x)
		}
		if models[decoder] != "" {
			return nil, fmt.Errorf("--model %q: %q is there twice", x, decoder)
		}
		models[decoder] = engine
	}
	return models, nil
}

// run serves until the command is interrupted.
func (f *prefillFlags) run(ctx context.Context, std streams, g given) (err error) {
	broken := make(chan os.Signal, 1)
	signal.Notify(broken, syscall.SIGPIPE) // a reader of the events that goes away must not end it
	defer signal.Stop(broken)
	j := newJournal(std)
	defer j.close()
	s := &sidecar{prefillFlags: f, std: std, journal: j, down: make(map[string]error)}
	o := linkOptions{peers: &s.peers}
	o.tellChoice(j.say)
	o.follow(&s.ports.ports)
	o.keys, err = f.keys.Choose(ctx, g, func(err error) { j.warn("peers are not as they should be", err) }, f.places()...)
	if err != nil {
		return keysError(err)
	}
	defer o.keys.Close() //nolint:errcheck // it cannot fail
	for _, w := range o.keys.Warnings(false) {
		std.warnf("%s", w)
	}
	server, err := f.listen(ctx, j)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	arriving, err := transport.NewRing(0, 0) // for ids of very long prompts; its memory is taken when it is used
	if err != nil {
		return failed(err)
	}
	defer func() { err = errors.Join(err, arriving.Close()) }()
	o.session = session.Options{Name: f.name, SendRing: server.Ring(), RecvRing: arriving}
	if s.timeline, err = f.watching.recorder("pdlink prefill"); err != nil {
		return err
	}
	defer func() { err = f.watching.keep(s.timeline, err) }()
	o.session.Intercept = s.timeline.Intercept(nil)
	if err := s.watch(ctx, server.Ring(), arriving); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.watched.close()) }()
	s.say(s.started(o))
	return s.serve(ctx, server, o)
}

// listen makes the ring and the socket.
func (f *prefillFlags) listen(ctx context.Context, j *journal) (*prefill.Server, error) {
	o := prefill.Options{
		Socket: f.socket, Slots: f.slots, LeaseWait: f.leaseWait, MemFloor: int64(f.memFloor) << 20,
		OnFault: func(err error) { j.warn("worker", err) },
	}
	for _, id := range f.uids {
		o.UIDs = append(o.UIDs, uint32(id))
	}
	var err error
	if o.Projection, err = f.projection(); err != nil {
		return nil, unusable(err)
	}
	s, err := prefill.Listen(ctx, o)
	switch {
	case err == nil:
		return s, nil
	case ctx.Err() != nil:
		return nil, errStopped
	case errors.Is(err, prefill.ErrInUse):
		return nil, failed(fmt.Errorf("--socket %s: %w: %s", f.socket, err, socketCure(f.socket, err)))
	case errors.Is(err, prefill.ErrRing):
		return nil, unusable(fmt.Errorf("--slots %d: %w: %s", f.slots, err, socketCure(f.socket, err)))
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, prefill.ErrUnavailable), len(f.socket) > maxSocketPath:
		return nil, unusable(fmt.Errorf("--socket %s: %w: %s", f.socket, err, socketCure(f.socket, err)))
	}
	return nil, failed(err)
}

// maxConfig bounds a model's config.json.
const maxConfig = 4 << 20

// projection opens what the kernels need; nil without --weights. It stays open as long
// as the process.
func (f *prefillFlags) projection() (*prefill.Projection, error) {
	if f.weights == "" {
		return nil, nil
	}
	text, err := cmdline.ReadFile(f.config, maxConfig, nil)
	if err != nil {
		return nil, fmt.Errorf("--model-config: %w", err)
	}
	p := &prefill.Projection{}
	if p.Geometry, err = kernels.ParseGeometry(text); err != nil {
		return nil, fmt.Errorf("--model-config %s: %w", f.config, err)
	}
	if p.Numerics, err = kernels.ParseNumerics(f.numerics); err != nil {
		return nil, fmt.Errorf("--numerics: %w", err)
	}
	if p.Weights, err = kernels.OpenWeights(f.weights, p.Geometry); err != nil {
		return nil, fmt.Errorf("--weights %s: %w", f.weights, err)
	}
	return p, nil
}

// sidecar is a `pdlink prefill` that runs.
type sidecar struct {
	*prefillFlags
	std      streams
	journal  *journal
	peers    peerNames
	ports    portLog                // that rdma links take
	told     sync.Once              // that events are lost
	down     map[string]error       // by a way, why it has no connection; of linkEvent
	watched  *watched               // nil: nobody wants to see
	timeline *trace.Recorder        // nil: nobody wants it
	waits    atomic.Pointer[string] // for what, "": prompts can be read; nil: it is not known yet
}

// serve keeps the connection and takes calls.
func (s *sidecar) serve(ctx context.Context, server *prefill.Server, o linkOptions) error {
	d, err := failover.New(failover.Options{
		Routes: s.seen(s.routes(o)), Window: s.retry,
		Permanent: linkkeys.Refused, OnEvent: func(e failover.Event) { s.linkEvent(ctx, e) },
	})
	if err != nil {
		return failed(err)
	}
	keeper := prefill.NewKeeper(s.timeline.Dialer(patient{d}), s.retry)
	options := prefill.ServiceOptions{
		Server: server, Group: s.member, Open: keeper.Open, Models: s.mapped, Name: s.name,
		OnReady: s.readyEvent, Waits: s.lacks, OnResult: s.callEvent,
		OnRefused: func(err error) { s.journal.warn("the decode host takes no announcement", err) },
	}
	if s.engineURL != nil {
		engine := prefill.NewVLLM(s.engineURL, os.Getenv(engineKeyEnv))
		defer engine.Close() //nolint:errcheck // it cannot fail
		options.Engine = engine
	}
	service, err := prefill.NewService(options)
	if err != nil {
		return failed(err)
	}
	s.watched.serve(s.checks())
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	done := make(chan error, 1)
	go func() { done <- keeper.Run(keeping, service.Serve) }()
	select {
	case <-ctx.Done():
		s.journal.say("pdlink: stopping; prompts that are being read end with what has arrived\n")
		err = service.Close() // while there is a connection to say so
		stop()
		<-done //nolint:errcheck // it was told to end
	case why := <-done:
		err = errors.Join(dialError(ctx, why), service.Close())
	}
	s.say(sidecarEnded{"ended", peakRSS(), uint64(len(server.Ring().Memory()))})
	switch {
	case err == nil:
		return nil
	case misused(err): // a service that is started again would end like this again
		return unusable(err)
	}
	return failed(err)
}

// patient is a dialler that does not give up.
type patient struct{ *failover.Dialer }

// Dial implements bridge.Dialer.
func (p patient) Dial(ctx context.Context) (transport.Conn, error) {
	for {
		c, err := p.Dialer.Dial(ctx)
		if !errors.Is(err, failover.ErrGaveUp) {
			return c, err
		}
		p.Progress() // the window begins anew
	}
}

// servedList is a list of ids for people.
func servedList(ids []string) string {
	ids = slices.Clone(ids)
	slices.Sort(ids)
	return listText(ids)
}
