//go:build cables

package why_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pdlink/bridge"
	"pdlink/bridge/trace"
	"pdlink/tcp"
	"pdlink/tools/pdperf/flow"
	"pdlink/tools/pdperf/why"
	"pdlink/transport"
	"pdlink/transport/keys"
	"pdlink/transport/seal"
	"pdlink/transport/session"
)

// A test runs both ends of a transfer as processes of their own, made of what the
// product is made of: this program, told by the environment which end it is.
const theEnd = "PDPERF_WHY_END"

// task is what an end is to do.
type task struct {
	Receive bool
	Keys    string
	Addr    string        // to listen on or to dial
	Blocks  int           // of blockBytes
	Pause   time.Duration // of a source, for each chunk that it makes
	Dir     string        // of a store; empty: blocks are thrown away
	Watch   bool          // flows are watched in the kernel
	Core    int           // 1 to the number of cores: the only one for the transfer, in which each frame takes work; 0: any
}

const (
	blockBytes = 2 << 20
	chunkBytes = 256 << 10
)

// told is what an end says when it is done.
type told struct {
	End     why.End
	Seconds float64
	Bytes   uint64
	Sockets []flow.Counters
	Report  *flow.Report
	Error   string
}

func TestMain(m *testing.M) {
	text := os.Getenv(theEnd)
	if text == "" {
		os.Exit(m.Run())
	}
	var do task
	err := json.Unmarshal([]byte(text), &do)
	var said told
	if err == nil {
		said, err = do.run()
	}
	if err != nil {
		said.Error = err.Error()
	}
	json.NewEncoder(os.Stdout).Encode(said)
}

func (do task) run() (told, error) {
	store, err := keys.Open(do.Keys, keys.Options{})
	if err != nil {
		return told{}, err
	}
	defer store.Close()
	rec := trace.New(trace.Options{})
	link := tcp.New(tcp.Options{Keys: store, Encrypt: seal.Clear, Session: session.Options{Intercept: rec.Intercept(do.work)}})
	begin, err := flow.ReadCPU()
	if err != nil {
		return told{}, err
	}
	var said told
	if do.Receive {
		said, err = do.receive(link, rec)
	} else {
		said, err = do.send(link, rec)
	}
	end, err2 := flow.ReadCPU()
	spent := end.Since(begin)
	said.End = why.End{
		Run: spent.Run.Seconds(), Ready: spent.Ready.Seconds(), Threads: 1,
		Disk: rec.Busy(trace.Write, trace.Sync).Seconds(), Fill: rec.Busy(trace.Project).Seconds(),
		Leases: rec.Busy(trace.Lease).Seconds(), Grants: rec.Busy(trace.Grant).Seconds(), Backlog: said.End.Backlog,
	}
	return said, errors.Join(err, err2)
}

// receive says where it listens, and takes one transfer.
func (do task) receive(link *tcp.Link, rec *trace.Recorder) (told, error) {
	verdicts := make(chan bridge.Verdict, 1)
	receiver := bridge.NewReceiver(bridge.Options{
		PartWait:  -1,
		OnVerdict: func(v bridge.Verdict) { verdicts <- v },
		Open: rec.Opener(func(string, []byte) (bridge.Opened, error) {
			return bridge.Opened{Target: &target{dir: do.Dir}, Blocks: do.Blocks, BlockBytes: blockBytes}, nil
		}),
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l, err := link.Listen(ctx, do.Addr)
	if err != nil {
		return told{}, err
	}
	fmt.Println(l.Addr())
	c, err := l.Accept(ctx)
	if err != nil {
		return told{}, err
	}
	if err := do.crowd(); err != nil {
		return told{}, err
	}
	here := netip.MustParseAddrPort(l.Addr())
	samples := flow.Sample(0, func(local, _ netip.AddrPort) bool { return local == here })
	var serving sync.WaitGroup
	serving.Go(func() { receiver.Serve(ctx, c) })
	v := <-verdicts
	backlog := samples.Stop()
	serving.Wait()
	if v.State != bridge.Complete {
		err = fmt.Errorf("verdict: %v", v)
	}
	return told{End: why.End{Backlog: backlog}, Seconds: v.Seconds, Bytes: v.Bytes}, errors.Join(err, c.Close(), l.Close(), receiver.Close())
}

// send makes blocks and reads the counters of its sockets at the end.
func (do task) send(link *tcp.Link, rec *trace.Recorder) (said told, err error) {
	ctx := context.Background()
	peer, err := netip.ParseAddrPort(do.Addr)
	if err != nil {
		return said, err
	}
	if do.Watch {
		w, err := flow.Watch(flow.WatchOptions{Ports: []uint16{peer.Port()}})
		if err != nil {
			return said, err
		}
		defer func() {
			err = errors.Join(err, w.Close())
			r := w.Report()
			said.Report = &r
		}()
	}
	d := &dialler{link: link, addr: do.Addr, closing: func() {
		said.Sockets, _ = flow.Sockets(func(_, remote netip.AddrPort) bool { return remote == peer })
	}}
	c, err := bridge.OpenCourier(ctx, rec.Dialer(d), transport.Request{Kind: "test", Parts: 1, Replayable: true}, bridge.Shape{Blocks: do.Blocks, BlockBytes: blockBytes})
	if err != nil {
		return said, err
	}
	if err := do.crowd(); err != nil {
		return said, err
	}
	v, err := c.Run(ctx, rec.Source(source{do}))
	if err == nil && v.State != bridge.Complete {
		err = fmt.Errorf("verdict: %v", v)
	}
	return said, err
}

// work makes each frame cost this end some ten times what it does, where it has a core
// of its own choice: which end is slow must not depend on what else this machine does.
func (do task) work(d session.Driver) session.Driver {
	if do.Core == 0 {
		return d
	}
	return worker{d, make([]byte, 8<<20)}
}

type worker struct {
	session.Driver
	ballast []byte
}

func (w worker) ReadFrame(lane int, header []byte, place session.Placer) (int, error) {
	n, err := w.Driver.ReadFrame(lane, header, place)
	if err == nil {
		sha256.Sum256(w.ballast)
	}
	return n, err
}

func (w worker) WriteFrame(lane int, header, payload []byte) error {
	sha256.Sum256(w.ballast)
	return w.Driver.WriteFrame(lane, header, payload)
}

// crowd puts this process on its core, where others are at work. It is called when the
// connection is made: only the transfer is slow.
func (do task) crowd() error {
	if do.Core == 0 {
		return nil
	}
	for range 2 { // threads that begin meanwhile are like the ones that begin them
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, t := range tasks {
			id, err := strconv.Atoi(t.Name())
			if err != nil {
				return err
			}
			if err := pin(id, do.Core-1); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
	}
	return nil
}

// pin keeps a thread, 0 for this one, and processes that it starts on a core.
func pin(thread, core int) error {
	var set unix.CPUSet
	set.Set(core)
	return unix.SchedSetaffinity(thread, &set)
}

// source makes blocks of nothing, in chunks.
type source struct{ task }

func (s source) Run(ctx context.Context, to bridge.Sink) error {
	chunk := make([]byte, chunkBytes)
	for b := range s.Blocks {
		for at := int64(0); at < blockBytes; at += chunkBytes {
			if s.Pause > 0 {
				time.Sleep(s.Pause)
			}
			if err := to.Put(ctx, b, at, chunk); err != nil {
				return err
			}
		}
		if s.Pause > 0 {
			if err := to.Push(ctx); err != nil {
				return err
			}
		}
	}
	return to.Push(ctx)
}

// dialler dials once. Before the connection ends it calls closing.
type dialler struct {
	link    *tcp.Link
	addr    string
	closing func()
}

func (d *dialler) Dial(ctx context.Context) (transport.Conn, error) {
	c, err := d.link.Dial(ctx, d.addr)
	return &closing{c, d.closing}, err
}
func (*dialler) Wait(_ context.Context, cause error) error { return cause }
func (*dialler) Lost(transport.Conn, error)                {}
func (*dialler) Done(transport.Conn)                       {}
func (*dialler) Progress()                                 {}

type closing struct {
	transport.Conn
	before func()
}

func (c *closing) Close() error {
	c.before()
	return c.Conn.Close()
}

// target writes blocks to files, or throws them away.
type target struct {
	dir   string
	mu    sync.Mutex // guards files
	files map[int]*os.File
}

func (t *target) file(block int) (*os.File, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.files[block]; f != nil {
		return f, nil
	}
	f, err := os.Create(filepath.Join(t.dir, fmt.Sprint(block)))
	if t.files == nil {
		t.files = make(map[int]*os.File)
	}
	t.files[block] = f
	return f, err
}

// Write writes through, so that it is the disk that is waited for.
func (t *target) Write(block int, off int64, p []byte) error {
	if t.dir == "" {
		return nil
	}
	f, err := t.file(block)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(p, off); err != nil {
		return err
	}
	return unix.Fdatasync(int(f.Fd()))
}

func (t *target) Seal(block int) error {
	if t.dir == "" {
		return nil
	}
	f, err := t.file(block)
	return errors.Join(err, f.Close())
}

func (*target) Sync(int) error               { return nil }
func (*target) Publish(int) error            { return nil }
func (*target) Settle(_, n int) (int, error) { return n, nil }
func (*target) Close() error                 { return nil }

// lines reads what an end says: its address first, if it has one.
func lines(r io.Reader) func() ([]byte, error) {
	b := bufio.NewReader(r)
	return func() ([]byte, error) { return b.ReadBytes('\n') }
}
