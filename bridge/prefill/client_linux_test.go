package prefill

import (
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"pdlink/transport"
)

// client is a worker of the tests. Its methods fail the test when the sidecar
// does not answer as it should.
type client struct {
	tb    testing.TB
	conn  *net.UnixConn
	ring  welcome
	kept  bool // the ring that it brought
	file  *os.File
	mem   []byte
	unmap func() error
	seq   uint64
	last  uint32
	ahead []message // read but not asked for yet
}

func helloOf(rank, size, local int) hello {
	return hello{Instance: transport.NewID(), TPRank: uint16(rank), TPSize: uint16(size), LocalWorkers: uint16(local), PID: uint32(os.Getpid())}
}

func dialSocket(path string) (*net.UnixConn, error) {
	return net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
}

// connect introduces a worker.
func connect(tb testing.TB, path string, h hello) *client {
	tb.Helper()
	c := &client{tb: tb}
	must(tb, c.open(path, h, nil))
	tb.Cleanup(c.close)
	return c
}

// open connects, with the ring of an earlier connection or without.
func (c *client) open(path string, h hello, ring *os.File) error {
	conn, err := dialSocket(path)
	if err != nil {
		return err
	}
	c.conn = conn
	m := pack(typeHello, 0, 0, &h)
	if ring != nil {
		m.code = flagRing
	}
	if err := send(conn, m.appendTo(nil), ring); err != nil {
		return err
	}
	var buf [messageSize]byte
	must(c.tb, conn.SetReadDeadline(time.Now().Add(time.Minute)))
	n, files, err := receive(conn, buf[:])
	if err != nil {
		return err
	}
	m, err = parseMessage(buf[:n])
	if err != nil {
		return err
	}
	if m.typ != typeWelcome || len(files) != 1 {
		return fmt.Errorf("answered with %d, %v, %d files", m.typ, m.code, len(files))
	}
	c.ring.get(&m.body)
	c.kept = m.code&flagRing != 0
	c.file = files[0]
	c.mem, c.unmap, err = mapMemory(c.file, int(c.ring.Size))
	return err
}

func (c *client) close() {
	if c.conn != nil {
		c.conn.Close()
	}
	if c.unmap != nil {
		c.unmap()
		c.file.Close()
		c.unmap = nil
	}
}

func (c *client) say(t msgType, handle uint32, f fields) {
	c.tb.Helper()
	m := pack(t, 0, handle, f)
	must(c.tb, send(c.conn, m.appendTo(nil), nil))
}

// hear returns the next message of a type; others wait for their turn.
func (c *client) hear(t msgType) message {
	c.tb.Helper()
	if i := slices.IndexFunc(c.ahead, func(m message) bool { return m.typ == t }); i >= 0 {
		m := c.ahead[i]
		c.ahead = slices.Delete(c.ahead, i, i+1)
		return m
	}
	must(c.tb, c.conn.SetReadDeadline(time.Now().Add(time.Minute)))
	for {
		var buf [messageSize]byte
		n, _, err := receive(c.conn, buf[:])
		if err != nil || n == 0 {
			c.tb.Fatalf("waiting for message %d: %d bytes, %v", t, n, err)
		}
		m, err := parseMessage(buf[:n])
		must(c.tb, err)
		if m.typ == t {
			return m
		}
		c.ahead = append(c.ahead, m)
	}
}

// begin begins a request and returns the answer and the arrays.
func (c *client) begin(b begin) (uint32, code, begun, []array) {
	c.tb.Helper()
	c.last++
	c.say(typeBegin, c.last, &b)
	m := c.hear(typeBegun)
	var g begun
	g.get(&m.body)
	arrays := make([]array, g.Arrays)
	for i := range arrays {
		a := c.hear(typeArray)
		arrays[i].get(&a.body)
		if int(arrays[i].Index) != i {
			c.tb.Fatalf("array %d has index %d", i, arrays[i].Index)
		}
	}
	return c.last, m.code, g, arrays
}

// beginPieces begins a request that has to be taken.
func (c *client) beginPieces(p *prompt) (uint32, begun, []array) {
	c.tb.Helper()
	h, why, g, arrays := c.begin(begin{Transfer: p.id, PromptTokens: uint32(p.tokens()), Mode: modePieces, DType: dtypeBF16})
	if why != codeOK {
		c.tb.Fatalf("begin: %v", why)
	}
	return h, g, arrays
}

// lease asks for a slot.
func (c *client) lease(handle, block uint32, wait time.Duration) (leased, code) {
	c.tb.Helper()
	c.seq++
	c.say(typeLease, handle, &lease{Seq: c.seq, Block: block, WaitMS: uint32(wait.Milliseconds())})
	m := c.hear(typeLeased)
	var l leased
	l.get(&m.body)
	if l.Seq != c.seq {
		c.tb.Fatalf("lease %d answered as %d", c.seq, l.Seq)
	}
	return l, m.code
}

// fill writes entries and bytes into a slot.
func (c *client) fill(l leased, entries [][]byte, data []byte) commit {
	rec := c.mem[pageSize+int(l.Slot)*recordSize+recordHead:]
	for i, e := range entries {
		copy(rec[i*entrySize:(i+1)*entrySize], e)
	}
	at := int(c.ring.FirstSlot) + int(l.Slot)*int(c.ring.SlotSize) + transport.HeaderRoom
	copy(c.mem[at:at+len(data)], data)
	return commit{Slot: l.Slot, Generation: l.Generation, Entries: uint32(len(entries)), Payload: uint32(len(data))}
}

// span is a run of bytes of a block.
type run struct {
	block    int
	off, end int64
}

func entryOf(r run) []byte {
	e := make([]byte, entrySize)
	putPiece(e, transport.Piece{Block: uint32(r.block), Offset: uint64(r.off), Length: uint32(r.end - r.off)})
	return e
}

// put sends runs of a prompt's blocks in one slot.
func (c *client) put(p *prompt, handle uint32, runs ...run) {
	c.tb.Helper()
	l, why := c.lease(handle, uint32(runs[0].block), time.Minute)
	if why != codeOK {
		c.tb.Fatalf("no slot for block %d: %v", runs[0].block, why)
	}
	cm := c.filled(p, l, runs...)
	c.say(typeCommit, handle, &cm)
}

func (c *client) filled(p *prompt, l leased, runs ...run) commit {
	var entries [][]byte
	var data []byte
	for _, r := range runs {
		entries = append(entries, entryOf(r))
		data = append(data, p.blocks[r.block][r.off:r.end]...)
	}
	return c.fill(l, entries, data)
}

// end ends a request.
func (c *client) end(handle uint32, tokens int) {
	c.tb.Helper()
	c.say(typeEnd, handle, &end{Tokens: uint32(tokens), Capture: 1e6, Project: 2e6, Wait: 3e6})
}
