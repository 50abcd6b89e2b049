package prefill

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pdlink/transport"
)

// TestBreaches: each ends the connection with the reason, and nobody else's.
func TestBreaches(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{Slots: 64})
	bystander := connect(t, h.socket, helloOf(0, 1, 1))
	for name, x := range map[string]struct {
		say  func(c *client, p *prompt, handle uint32, l leased)
		want string
	}{
		"welcome from a worker": {func(c *client, _ *prompt, _ uint32, _ leased) { c.say(typeWelcome, 0, &welcome{}) }, "a worker does not send"},
		"hello again":           {func(c *client, _ *prompt, _ uint32, _ leased) { h := helloOf(0, 1, 1); c.say(typeHello, 0, &h) }, "a worker does not send"},
		"handle 0":              {func(c *client, p *prompt, _ uint32, _ leased) { c.say(typeBegin, 0, &begin{Mode: modeRows}) }, "request 0 begun"},
		"handle again":          {func(c *client, p *prompt, h uint32, _ leased) { c.say(typeBegin, h, &begin{Mode: modeRows}) }, "begun after"},
		"mode":                  {func(c *client, p *prompt, h uint32, _ leased) { c.say(typeBegin, h+1, &begin{Mode: 3}) }, "has mode 3"},
		"lease of nothing":      {func(c *client, _ *prompt, h uint32, _ leased) { c.say(typeLease, h+1, &lease{}) }, "was not begun"},
		"end of nothing":        {func(c *client, _ *prompt, h uint32, _ leased) { c.say(typeEnd, h+1, &end{}) }, "was not begun"},
		"not answered": {func(c *client, _ *prompt, h uint32, _ leased) {
			c.say(typeBegin, h+1, &begin{Transfer: seqID(77), Mode: modePieces})
			c.say(typeLease, h+1, &lease{})
		}, "was not answered"},
		"slot of nobody": {func(c *client, _ *prompt, h uint32, l leased) {
			c.say(typeCommit, h, &commit{Slot: l.Slot + 1, Generation: l.Generation, Entries: 1, Payload: 1})
		}, "not leased to this worker"},
		"slot that is not there": {func(c *client, _ *prompt, h uint32, _ leased) {
			c.say(typeCommit, h, &commit{Slot: 1 << 31, Entries: 1, Payload: 1})
		}, "not leased to this worker"},
		"generation": {func(c *client, _ *prompt, h uint32, l leased) {
			c.say(typeReturn, h, &commit{Slot: l.Slot, Generation: l.Generation + 1}) // it may have crossed
			c.say(typeReturn, h, &commit{Slot: 1 << 31})
			c.say(typeCommit, h, &commit{Slot: l.Slot, Generation: l.Generation + 1, Entries: 1, Payload: 1})
		}, "not leased to this worker"},
		"committed twice": {func(c *client, p *prompt, h uint32, l leased) {
			cm := c.filled(p, l, run{0, 0, 8})
			c.say(typeCommit, h, &cm)
			c.say(typeCommit, h, &cm)
		}, "not leased to this worker"},
		"no entries": {func(c *client, _ *prompt, h uint32, l leased) {
			c.say(typeCommit, h, &commit{Slot: l.Slot, Generation: l.Generation})
		}, "commit of 0 entries"},
		"127 entries": {func(c *client, _ *prompt, h uint32, l leased) {
			c.say(typeCommit, h, &commit{Slot: l.Slot, Generation: l.Generation, Entries: 127, Payload: 127})
		}, "commit of 127 entries"},
		"sum of lengths": {func(c *client, p *prompt, h uint32, l leased) {
			cm := c.filled(p, l, run{0, 0, 8}, run{0, 8, 16})
			cm.Payload++
			c.say(typeCommit, h, &cm)
		}, "commit of 17 bytes, the entries add up to 16"},
		"empty piece": {func(c *client, p *prompt, h uint32, l leased) {
			cm := c.filled(p, l, run{0, 0, 8}, run{0, 8, 8})
			c.say(typeCommit, h, &cm)
		}, "entry of 0 bytes"},
		"more than a slot": {func(c *client, _ *prompt, h uint32, l leased) {
			cm := c.fill(l, [][]byte{entryOf(run{0, 0, 1 << 20})}, nil)
			cm.Payload = 1 << 20
			c.say(typeCommit, h, &cm)
		}, "entry of 1048576 bytes"},
		"block": {func(c *client, _ *prompt, h uint32, l leased) {
			cm := c.fill(l, [][]byte{entryOf(run{2, 0, 8})}, make([]byte, 8))
			c.say(typeCommit, h, &cm)
		}, "of block 2: the plan"},
		"behind the block": {func(c *client, p *prompt, h uint32, l leased) {
			size := p.layout.WireSize()
			cm := c.fill(l, [][]byte{entryOf(run{0, size - 7, size + 1})}, make([]byte, 8))
			c.say(typeCommit, h, &cm)
		}, "of block 0: the plan"},
		"offset": {func(c *client, _ *prompt, h uint32, l leased) {
			cm := c.fill(l, [][]byte{entryOf(run{0, -4, 4})}, make([]byte, 8))
			c.say(typeCommit, h, &cm)
		}, "of block 0: the plan"},
		"short packet": {func(c *client, _ *prompt, _ uint32, _ leased) { must(t, send(c.conn, []byte("PDLE"), nil)) }, "packet of 4 bytes"},
		"long packet":  {func(c *client, _ *prompt, _ uint32, _ leased) { must(t, send(c.conn, make([]byte, 200), nil)) }, "packet of 65 bytes"},
		"other magic":  {func(c *client, _ *prompt, _ uint32, _ leased) { must(t, send(c.conn, make([]byte, 64), nil)) }, "packet begins with"},
		"attached file": {func(c *client, _ *prompt, _ uint32, _ leased) {
			m := pack(typeEnd, 0, 1, &end{})
			must(t, send(c.conn, m.appendTo(nil), c.file))
		}, "files attached"},
	} {
		t.Run(name, func(t *testing.T) {
			p := d.newPrompt(t, name, 2)
			p.id = transport.NewID()
			r := h.run(p)
			c := connect(t, h.socket, helloOf(0, 1, 1))
			handle, _, _ := c.beginPieces(p)
			l, why := c.lease(handle, 0, time.Second)
			if why != codeOK {
				t.Fatal(why)
			}
			x.say(c, p, handle, l)
			for i := range uint32(20) { // said before the refusal is read: must not drown it
				m := pack(typeLease, 0, handle, &lease{Seq: uint64(i)})
				send(c.conn, m.appendTo(nil), nil)
			}
			m := c.hear(typeRefuse)
			var got text
			if got.get(&m.body); m.code != codeInvalid {
				t.Errorf("refused with %v: %s", m.code, got)
			}
			if n, _, err := receive(c.conn, make([]byte, 64)); n != 0 && err == nil {
				t.Error("the connection goes on")
			}
			eventually(t, "the fault is told", func() bool {
				h.faults.mu.Lock()
				defer h.faults.mu.Unlock()
				for _, err := range h.faults.list {
					if errors.Is(err, ErrWorker) && strings.Contains(err.Error(), x.want) {
						return true
					}
				}
				return false
			})
			r.Cancel("enough")
			r.result()
		})
	}
	p := d.newPrompt(t, "bystander", 1)
	r := h.run(p)
	handle, _, arrays := bystander.beginPieces(p)
	bystander.put(p, handle, headRuns(0, arrays, 0, 1)...)
	bystander.end(handle, 21)
	if res := r.result(); res.Blocks != 1 {
		t.Errorf("%+v", res)
	}
}

// TestRowBreaches: rows that a worker does not have, or that are none.
func TestRowBreaches(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{Slots: 64})
	good := rows{Layer: 1, Length: 2 * 2 * 64, First: 3, Tokens: 2, What: whatV, Heads: span{2, 4}}
	for name, change := range map[string]func(*rows){
		"layer below": func(r *rows) { r.Layer = 0 }, "layer above": func(r *rows) { r.Layer = 2 },
		"head below": func(r *rows) { r.Heads.First-- }, "head above": func(r *rows) { r.Heads = span{3, 5} }, "no heads": func(r *rows) { r.Heads.End = 2 },
		"what": func(r *rows) { r.What = whatX }, "length": func(r *rows) { r.Length-- }, "no tokens": func(r *rows) { r.Tokens = 0 },
		"behind the prompt": func(r *rows) { r.First = 36 }, "far": func(r *rows) { r.First = 1<<32 - 1 },
	} {
		p := d.newPrompt(t, name, 2)
		p.id = transport.NewID()
		r := h.run(p)
		who := helloOf(1, 2, 1)
		who.Layers, who.Heads = span{1, 2}, span{2, 4}
		c := connect(t, h.socket, who)
		handle, why, g, _ := c.begin(begin{Transfer: p.id, PromptTokens: 37, Mode: modeRows, DType: dtypeBF16, RowBytes: 2 * 64})
		if why != codeOK || g.Layers != (span{1, 2}) {
			t.Fatalf("%v, %+v", why, g)
		}
		x, e := good, make([]byte, entrySize)
		x.put(e)
		l, _ := c.lease(handle, 0, time.Second)
		cm := c.fill(l, [][]byte{e}, make([]byte, x.Length))
		c.say(typeCommit, handle, &cm) // the good ones are taken
		change(&x)
		x.put(e)
		l, _ = c.lease(handle, 0, time.Second)
		cm = c.fill(l, [][]byte{e}, make([]byte, x.Length))
		c.say(typeCommit, handle, &cm)
		if m := c.hear(typeRefuse); m.code != codeInvalid {
			t.Errorf("%s: %v", name, m.code)
		}
		r.Cancel("enough")
		r.result()
	}
}

// TestWhoIsRefused: before anything is shared.
func TestWhoIsRefused(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{})
	good := helloOf(0, 1, 1)
	packet := func(change func(*hello)) []byte {
		x := good
		change(&x)
		m := pack(typeHello, 0, 0, &x)
		return m.appendTo(nil)
	}
	other := packet(func(*hello) {})
	other[4] = 9
	lied := pack(typeHello, flagRing, 0, &good)
	first := pack(typeLease, 0, 1, &lease{})
	for name, x := range map[string]struct {
		p    []byte
		want code
	}{
		"version": {other, codeVersion}, "no hello": {first.appendTo(nil), codeInvalid}, "short": {[]byte("hello"), codeInvalid},
		"no instance": {packet(func(h *hello) { h.Instance = transport.ID{} }), codeInvalid},
		"rank":        {packet(func(h *hello) { h.TPRank = 1 }), codeInvalid},
		"no workers":  {packet(func(h *hello) { h.LocalWorkers = 0 }), codeInvalid},
		"layers":      {packet(func(h *hello) { h.Layers = span{2, 1} }), codeInvalid},
		"ring lie":    {lied.appendTo(nil), codeInvalid},
	} {
		conn, err := dialSocket(h.socket)
		must(t, err)
		c := &client{tb: t, conn: conn}
		must(t, send(conn, x.p, nil))
		if m := c.hear(typeRefuse); m.code != x.want {
			t.Errorf("%s: %v, want %v", name, m.code, x.want)
		}
		conn.Close()
	}
}

// TestUsers: the kernel's word on who connected decides.
func TestUsers(t *testing.T) {
	s := &Server{o: Options{UIDs: []uint32{7}}}
	me := uint32(os.Getuid())
	if !s.allowed(me) || !s.allowed(7) || s.allowed(me+8) {
		t.Error("users")
	}
	d := newDecoder(t)
	h := newHost(t, d, Options{})
	info, err := os.Stat(h.socket)
	must(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	conn, err := dialSocket(h.socket)
	must(t, err)
	defer conn.Close()
	p, err := peerOf(conn)
	must(t, err)
	defer p.close()
	if p.uid != me || !p.known() {
		t.Errorf("%+v", p)
	}
}

// TestOneSidecar: a second one does not take the socket from the first, and nothing
// that is no socket is removed.
func TestOneSidecar(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{})
	if _, err := Listen(t.Context(), Options{Socket: h.socket, Slots: 4}); !errors.Is(err, ErrInUse) {
		t.Error(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, []byte("precious"), 0o600))
	if _, err := Listen(t.Context(), Options{Socket: file, Slots: 4}); !errors.Is(err, ErrInUse) {
		t.Error(err)
	}
	if b, err := os.ReadFile(file); string(b) != "precious" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := Listen(t.Context(), Options{Socket: filepath.Join(t.TempDir(), "absent", "s"), Slots: 4}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	// Where nobody was before, nobody is waited for.
	begin := time.Now()
	s, err := Listen(t.Context(), Options{Socket: filepath.Join(t.TempDir(), "s"), Slots: 4, Reclaim: time.Hour})
	must(t, err)
	if time.Since(begin) > time.Minute {
		t.Error("waited")
	}
	must(t, s.Close())
	must(t, s.Close())
	if _, err := os.Lstat(s.o.Socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if _, err := s.Open(Job{}); !errors.Is(err, ErrJob) {
		t.Error(err)
	}
	if _, err := s.Open(d.newPrompt(t, "p", 1).job(t, h.conn)); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// TestForeignMemory: a worker cannot make a sidecar use memory that may shrink, or
// another ring.
func TestForeignMemory(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{})
	sized, err := makeMemory(h.geometry.size())
	must(t, err)
	defer sized.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	must(t, err)
	must(t, file.Truncate(int64(h.geometry.size())))
	defer file.Close()
	for name, f := range map[string]*os.File{"other ring": sized, "file": file} {
		c := &client{tb: t}
		must(t, c.open(h.socket, helloOf(0, 1, 1), f))
		if c.kept {
			t.Errorf("%s: taken for the ring", name)
		}
		c.close()
	}
	if _, _, err := mapMemory(file, h.geometry.size()); !errors.Is(err, ErrRing) {
		t.Errorf("a file: %v", err)
	}
	if _, _, err := mapMemory(sized, h.geometry.size()+1); !errors.Is(err, ErrRing) {
		t.Errorf("another size: %v", err)
	}
	if err := sized.Truncate(1); err == nil {
		t.Error("the ring's size can be changed")
	}
	// A new sidecar that is brought such things makes a ring of its own.
	socket := filepath.Join(t.TempDir(), "s")
	must(t, os.WriteFile(socket+".old", nil, 0o600))
	first := newHost(t, d, Options{Socket: socket})
	c := connect(t, socket, helloOf(0, 1, 1))
	must(t, first.conn.Close())
	must(t, first.Close()) // the worker is there, so the name stays
	came := make(chan bool, 1)
	go func() {
		next := &client{tb: t}
		for range 200 {
			if next.open(socket, helloOf(0, 1, 1), file) == nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		came <- next.kept
		next.close()
	}()
	second := newHost(t, d, Options{Socket: socket, Reclaim: 300 * time.Millisecond})
	if <-came {
		t.Error("a file was taken for the ring")
	}
	if second.table.id == c.ring.Ring {
		t.Error("the ring is not new")
	}
}

// TestDuplicateTransfer: an id is open once.
func TestDuplicateTransfer(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{})
	p := d.newPrompt(t, "p", 1)
	j := p.job(t, h.conn)
	r := h.runJob(j)
	if _, err := h.Open(j); !errors.Is(err, ErrDuplicate) {
		t.Error(err)
	}
	r.Cancel("enough")
	r.result()
	if _, err := r.Run(t.Context()); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, _, err := new(Keeper).Open(t.Context(), transport.Request{Replayable: true}, j.shape()); !errors.Is(err, ErrJob) {
		t.Error(err)
	}
}

// TestFileOfABadMessage: what came with a message that cannot be read is closed, not
// left to the collector.
func TestFileOfABadMessage(t *testing.T) {
	d := newDecoder(t)
	h := newHost(t, d, Options{})
	for name, bytes := range map[string][]byte{"short": make([]byte, 10), "no magic": make([]byte, messageSize)} {
		c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: h.socket, Net: "unixpacket"})
		must(t, err)
		r, w, err := os.Pipe()
		must(t, err)
		must(t, send(c, bytes, w))
		must(t, w.Close())
		must(t, r.SetReadDeadline(time.Now().Add(30*time.Second)))
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the sidecar keeps its file: %v", name, err)
		}
		r.Close()
		c.Close()
	}
}
