package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"pdlink/bridge"
	"pdlink/bridge/front"
	"pdlink/bridge/omlx"
	"pdlink/tools/cmdline"
	"pdlink/transport"
)

// doorFlags are the flags of `pdlink decode` that are about its front door.
type doorFlags struct {
	decoder, addr        string
	minTokens, minTail   int
	decoderRate          float64
	perEngine            int
	queueWait, keepAlive time.Duration
	allowUnknown, tail   bool

	url *url.URL // what check made of decoder; nil: there is no front door
}

// register adds the flags to a command.
func (f *doorFlags) register(c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.decoder, "decoder", "", "open a front door before the decoder whose API is at `URL`, which has the plug-in pdlink-omlx")
	fl.StringVar(&f.addr, "front", "127.0.0.1:8012", "with --decoder: where clients connect, `HOST:PORT`, or a port on loopback")
	fl.IntVar(&f.minTokens, "min-tokens", front.DefaultMinTokens, "with --decoder: prompts of fewer tokens are left to the decoder")
	fl.IntVar(&f.minTail, "min-tail", front.DefaultMinTail, "with --decoder: so are those of which it lacks fewer tokens")
	fl.Float64Var(&f.decoderRate, "decoder-rate", 0, "with --decoder: its own prefill in tokens a second; then a prompt is bridged only where that is sooner done")
	fl.IntVar(&f.perEngine, "per-engine", front.DefaultPerEngine, "with --decoder: prompts that one prefill host reads at a time, 1 or more")
	fl.DurationVar(&f.queueWait, "queue-wait", front.DefaultQueueWait, "with --decoder: how long a prompt waits for a prefill host")
	fl.BoolVar(&f.tail, "tail", false, "with --decoder: bring what lies behind the last whole block too, so that one token is left to compute (plain keys and values)")
	fl.DurationVar(&f.keepAlive, "keep-alive", 0, "with --decoder: how often a streaming client hears a comment while its prompt is read; 0 is never")
	fl.BoolVar(&f.allowUnknown, "allow-unknown", false, "with --decoder: take prefill hosts whose model cannot be compared with the decoder's too")
	cmdline.OnlyWith(c, forDecoder(), "decoder")
}

// forDecoder are the flags that have an effect with --decoder only.
func forDecoder() []string {
	return []string{
		"front", "min-tokens", "min-tail", "decoder-rate", "per-engine", "queue-wait", "keep-alive", "tail", "allow-unknown",
	}
}

// check looks at the flags.
func (f *doorFlags) check(g given) (err error) {
	if f.decoder == "" {
		return errors.Join(g.filled(map[string]string{"decoder": f.decoder}), g.unused("is for --decoder", forDecoder()...))
	}
	var errs []error
	bad := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	if f.url, err = parseHTTP("decoder", f.decoder); err != nil {
		errs = append(errs, err)
	}
	if n, err := strconv.ParseUint(f.addr, 10, 16); err == nil {
		f.addr = net.JoinHostPort("127.0.0.1", strconv.FormatUint(n, 10))
	}
	_, port, err := net.SplitHostPort(f.addr)
	bad(err != nil || port == "", "--front %q: want a port (8012, on loopback) or host:port", f.addr)
	bad(f.minTokens < 0, "--min-tokens %d: want 0 or more", f.minTokens)
	bad(f.minTail < 0, "--min-tail %d: want 0 or more", f.minTail)
	bad(f.decoderRate < 0, "--decoder-rate %v: want tokens a second, or 0 where it is not known", f.decoderRate)
	bad(f.perEngine < 1, "--per-engine %d: want 1 or more, the prompts that a prefill host reads at a time; to have none bridged, leave --decoder out and let clients use the decoder's own port", f.perEngine)
	bad(f.queueWait <= 0, "--queue-wait %v: want a time that is longer than nothing, 1ms at least", f.queueWait)
	bad(f.keepAlive < 0, "--keep-alive %v: want a time, or 0 for no comments", f.keepAlive)
	bad(f.url != nil && meetsItself(f.url, f.addr), "--front %s is where --decoder %s leads, so requests would come back for ever: give the front another port than the decoder's", f.addr, f.decoder)
	return errors.Join(errs...)
}

// meetsItself reports that the decoder's URL leads to the front's own address.
func meetsItself(decoder *url.URL, front string) bool {
	port := decoder.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[decoder.Scheme]
	}
	host, mine, err := net.SplitHostPort(front)
	if err != nil || mine != port || mine == "0" {
		return false
	}
	to, at := numeric(decoder.Hostname()), numeric(host)
	if !to.IsValid() || !at.IsValid() { // names: what they mean is not looked up
		return strings.EqualFold(decoder.Hostname(), host)
	}
	named := strings.EqualFold(decoder.Hostname(), "localhost") // of both families
	if at == to || at.IsLoopback() && (to.IsUnspecified() || named) {
		return true
	}
	_, ours := interfaceOf(to)
	return at.IsUnspecified() && (to.IsLoopback() || to.IsUnspecified() || ours)
}

// numeric is a host's address where that needs no look-up.
func numeric(host string) netip.Addr {
	switch {
	case host == "":
		return netip.IPv4Unspecified()
	case strings.EqualFold(host, "localhost"):
		host = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}
	}
	return ip.Unmap()
}

// door is a front door that is open.
type door struct {
	front    *front.Front
	plugin   *front.Plugin
	hosts    *front.Hosts
	server   *http.Server
	listener net.Listener
	name     string     // of the host in --front, where that is none of its addresses
	served   chan error // how serving ended; capacity 1
	ending   sync.Once
	ended    error  // of close
	unlog    func() // gives the log package's logger back; nil: it was not taken

	std    streams
	noSync bool
	mu     sync.Mutex // guards stores
	stores map[string]*omlx.Store
}

// doorTimes bound what a client may take, beside its answer.
const (
	headerTime = 30 * time.Second
	idleTime   = 2 * time.Minute
	closeTime  = 2 * time.Second // for answers that run when the command ends

	// maxStores bounds the stores of a decoder that is started again with others.
	maxStores = 8

	// probeTime bounds the look for the plug-in at the start.
	probeTime = 3 * time.Second
)

// warnings are what the user has to know about an open door.
func (d *door) warnings() []string {
	if d == nil {
		return nil
	}
	if a, err := netip.ParseAddrPort(d.listener.Addr().String()); err == nil && a.Addr().Unmap().IsLoopback() {
		return nil
	}
	return []string{fmt.Sprintf("--front %v: other hosts can reach this address, and whoever does can use the decoder: "+
		"what goes through it is not sealed and has no login but the decoder's own", d.listener.Addr())}
}

// open opens the front door. told is told what became of requests and must not wait.
func (f *doorFlags) open(ctx context.Context, std streams, j *journal, noSync bool, told func(front.Record)) (_ *door, err error) {
	d := &door{std: std, noSync: noSync, served: make(chan error, 1), stores: make(map[string]*omlx.Store)}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.close())
		}
	}()
	if d.name, _, err = net.SplitHostPort(f.addr); err != nil {
		return nil, err
	}
	if d.listener, err = new(net.ListenConfig).Listen(ctx, "tcp", f.addr); err != nil {
		return nil, failed(listenError("front", f.addr, fmt.Errorf("--front %s: %w", f.addr, err)))
	}
	if d.plugin, err = front.NewPlugin(front.PluginOptions{Decoder: f.url, Tail: f.tail, Key: os.Getenv(decoderKeyEnv)}); err != nil {
		return nil, err
	}
	d.front, err = front.New(front.Options{
		Decoder: f.url, Planner: d.plugin, Cold: front.Cold{MinTokens: orAny(f.minTokens), MinTail: orAny(f.minTail), DecoderRate: f.decoderRate},
		PerEngine: f.perEngine, QueueWait: f.queueWait, KeepAlive: f.keepAlive, OnRecord: told, ErrorLog: log.New(httpLog{j}, "", 0),
	})
	if err != nil {
		return nil, err
	}
	matches, err := f.matches(d.plugin, j)
	if err != nil {
		return nil, err
	}
	d.hosts, err = front.NewHosts(front.HostsOptions{
		Add: d.front.Add, Waits: d.front.Waits, OnHost: func(e front.HostEvent) { j.say("%s\n", hostText(e)) }, Matches: matches, Build: thisBuild().Version,
	})
	if err != nil {
		return nil, err
	}
	d.server = &http.Server{Handler: d.pages(), ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, ErrorLog: log.New(httpLog{j}, "", 0)}
	out, flags := log.Writer(), log.Flags() // the clients of net/http know no other logger
	d.unlog = func() {
		log.SetOutput(out)
		log.SetFlags(flags)
	}
	log.SetOutput(httpLog{j})
	log.SetFlags(0)
	go func() { d.served <- d.server.Serve(d.listener) }()
	probing, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	if err := d.plugin.Probe(probing); err != nil && ctx.Err() == nil {
		std.warnf("--decoder %s: %v; requests are forwarded meanwhile, and what can be bridged will be", f.url, err)
	}
	return d, nil
}

// httpLog is where net/http says what went wrong. Nobody waits for whoever reads it.
type httpLog struct{ j *journal }

// maxHTTPLog bounds a line: one that has a stack is long.
const maxHTTPLog = 4 << 10

// Write implements io.Writer.
func (l httpLog) Write(p []byte) (int, error) {
	text, _, _ := strings.Cut(string(p), " starting with ") // what comes then a decoder sent, to some client
	l.j.warn("front", errors.New(strings.TrimSpace(text[:min(len(text), maxHTTPLog)])))
	return len(p), nil
}

// orAny makes 0 and less mean any number.
func orAny(n int) int {
	if n <= 0 {
		return -1
	}
	return n
}

// hostText is what people read of a prefill host that came or went.
func hostText(e front.HostEvent) string {
	who := fmt.Sprintf("prefill host %s (%s)", e.Name, e.Remote)
	switch {
	case e.Refused:
		return fmt.Sprintf("%s was not taken: %v", who, e.Err)
	case e.Waits != "":
		return fmt.Sprintf("%s is connected and waits: %s", who, e.Waits)
	case e.Gone:
		return fmt.Sprintf("%s, which took no prompts yet, is not connected any more: %v", who, e.Err)
	case e.Group == nil && e.Here:
		return fmt.Sprintf("%s reads prompts for %s", who, listText(e.Models))
	case e.Group == nil:
		return fmt.Sprintf("%s takes no prompts any more: %v", who, e.Err)
	case !e.Here:
		return fmt.Sprintf("%s, %v, takes no prompts any more, so the group does not: %v", who, e.Group, e.Err)
	case len(e.Hosts) > 0:
		return fmt.Sprintf("%s is %v: prefill group %s (%s) reads prompts for %s",
			who, e.Group, e.Group.Name, listText(e.Hosts), listText(e.Models))
	}
	lacks := slices.Clone(e.Lacks)
	for i := range lacks {
		lacks[i]++
	}
	return fmt.Sprintf("%s is %v, which waits for part %s", who, e.Group, listText(lacks))
}

// pages is what the front's port serves: its own pages below /pdlink/, for who is on
// this host and means it: a page of somebody else's, whose name leads here, cannot have a
// browser read them. All else is as the decoder does it. The plug-in's endpoints are not
// there.
func (d *door) pages() http.Handler {
	mux := http.NewServeMux()
	own := d.front.Transfers()
	mux.HandleFunc("/pdlink/", func(w http.ResponseWriter, r *http.Request) {
		if a, err := netip.ParseAddrPort(r.RemoteAddr); err != nil || !a.Addr().Unmap().IsLoopback() {
			http.Error(w, "pdlink's pages are for clients on the decode host", http.StatusForbidden)
			return
		}
		host := r.Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if !numeric(strings.Trim(host, "[]")).IsValid() && !strings.EqualFold(host, d.name) { // localhost is
			http.Error(w, "pdlink's pages are at localhost", http.StatusForbidden)
			return
		}
		own.ServeHTTP(w, r)
	})
	return doorHandler{mux, d.front}
}

// doorHandler tells own pages from requests, whose paths are not touched.
type doorHandler struct{ own, rest http.Handler }

// ServeHTTP implements http.Handler.
func (h doorHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const own = "/pdlink"
	if p := r.URL.Path; len(p) >= len(own) && p[:len(own)] == own && (len(p) == len(own) || p[len(own)] == '/') {
		h.own.ServeHTTP(w, r)
		return
	}
	h.rest.ServeHTTP(w, r)
}

// close ends the calls that run, lets answers end for a moment, and closes the door.
// It is idempotent.
func (d *door) close() error {
	d.ending.Do(func() { d.ended = d.shut() })
	return d.ended
}

// shut is close, once.
func (d *door) shut() error {
	var errs []error
	if d.front != nil {
		errs = append(errs, d.front.Close())
	}
	if d.hosts != nil {
		errs = append(errs, d.hosts.Close())
	}
	switch {
	case d.server != nil:
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		if d.server.Shutdown(ctx) != nil { // answers that take longer are cut
			errs = append(errs, d.server.Close())
		}
		if err := <-d.served; !errors.Is(err, http.ErrServerClosed) {
			errs = append(errs, err)
		}
	case d.listener != nil:
		errs = append(errs, d.listener.Close())
	}
	if d.plugin != nil {
		errs = append(errs, d.plugin.Close())
	}
	if d.unlog != nil {
		d.unlog()
	}
	return errors.Join(errs...)
}

// opener opens transfers into the store that the decoder's plug-in names.
func (d *door) opener(kind string, meta []byte) (bridge.Opened, error) {
	store, err := d.store()
	if err != nil {
		return bridge.Opened{}, err
	}
	return openStore(store)(kind, meta)
}

// store is the decoder's store now.
func (d *door) store() (*omlx.Store, error) {
	dir := d.plugin.Store()
	if dir == "" {
		return nil, errors.New("the decoder's store is not known before the first request through the front: send one, or give --store")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if s := d.stores[dir]; s != nil {
		return s, nil
	}
	_, s, err := place{dir, true}.open(d.std, d.noSync)
	if err != nil {
		return nil, err
	}
	if len(d.stores) >= maxStores {
		clear(d.stores)
	}
	d.stores[dir] = s
	return s, nil
}

// link is a link whose connections prefill hosts may announce themselves on.
func (d *door) link(l transport.Link) transport.Link { return doorLink{l, d.hosts} }

// doorLink is a link with a front door.
type doorLink struct {
	transport.Link
	hosts *front.Hosts
}

// Listen implements transport.Link.
func (l doorLink) Listen(ctx context.Context, addr string) (transport.Listener, error) {
	ln, err := l.Link.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	return doorListener{ln, l.hosts}, nil
}

// doorListener is a listener with a front door.
type doorListener struct {
	transport.Listener
	hosts *front.Hosts
}

// Accept implements transport.Listener.
func (l doorListener) Accept(ctx context.Context) (transport.Conn, error) {
	c, err := l.Listener.Accept(ctx)
	if err != nil {
		return nil, err
	}
	return l.hosts.Attend(c), nil
}

// request tells what became of a request. It does not wait: the list of them has it
// too.
func (d *decoding) request(r front.Record) {
	select {
	case d.events <- requestEvent{"request", r.String(), r}:
	default:
	}
}

// requestEvent is the event of a request that the front looked at.
type requestEvent struct {
	Event   string `json:"event"`
	Verdict string `json:"verdict"`
	front.Record
}

func (e requestEvent) text(std streams) {
	cached := "not told"
	if e.Cached != nil {
		cached = fmt.Sprint(*e.Cached)
	}
	sent, join := "", ", from "
	for _, h := range e.Hosts {
		sent += join + h.Name + " " + bytesText(h.Bytes)
		join = " and "
	}
	good := e.Outcome != front.Declined && e.Check != front.CheckLess
	std.printf("request %s: %s%s, cached tokens %s (%s), %.3f s, of it %.3f s for the bridge\n",
		e.Path, std.verdict(e.String(), good), sent, painted(cached), string(e.Check), e.Seconds, e.PlanSeconds+e.BridgeSeconds)
}
