package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"pdlink/tools/pdperf/stats"
	"pdlink/transport"
	"pdlink/transport/mem"
	"pdlink/transport/session"
)

// memEnd is a receiving end and a connection to it.
func memEnd(t *testing.T, o receiveOptions) (conn transport.Conn, told chan served) {
	t.Helper()
	link := mem.New(mem.Options{Session: session.Options{}})
	ln, err := link.Listen(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	told = make(chan served, 16)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c, err := ln.Accept(context.Background())
		if err != nil {
			return
		}
		newReceivingEnd(o).serve(context.Background(), c, func(s served) { told <- s })
		c.Close()
	}()
	if conn, err = link.Dial(t.Context(), ln.Addr()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		<-ended
		ln.Close()
	})
	return conn, told
}

func askOf(blockBytes uint64) []byte {
	text, err := json.Marshal(ask{askVersion, blockBytes, nil})
	if err != nil {
		panic(err)
	}
	return text
}

func TestReceiverRefusesOffers(t *testing.T) {
	conn, _ := memEnd(t, receiveOptions{slots: 64, window: 16})
	for _, c := range []struct {
		r   transport.Request
		say string
	}{
		{transport.Request{Kind: "omlx", Meta: askOf(8)}, "kind"},
		{transport.Request{Kind: kindPerf, Meta: askOf(8), Parts: 2}, "one sender"},
		{transport.Request{Kind: kindPerf}, "read request"},
		{transport.Request{Kind: kindPerf, Meta: []byte("{}")}, "same release"},
		{transport.Request{Kind: kindPerf, Meta: askOf(0)}, "blocks of 0"},
		{transport.Request{Kind: kindPerf, Meta: askOf(maxBlock + 8)}, "blocks of"},
		{transport.Request{Kind: kindPerf, Meta: make([]byte, maxLine+1)}, "too long"},
	} {
		out, err := conn.Open(t.Context(), c.r)
		if !errors.Is(err, transport.ErrRefused) || !strings.Contains(err.Error(), c.say) || out != nil {
			t.Errorf("%q %s: %v, want %q", c.r.Kind, c.r.Meta[:min(20, len(c.r.Meta))], err, c.say)
		}
	}
}

// TestReceiverEndsBadTransfers has a peer that keeps to the transport's rules
// and not to ours.
func TestReceiverEndsBadTransfers(t *testing.T) {
	type piece struct {
		block  uint32
		offset uint64
		n      int
	}
	for _, c := range []struct {
		name   string
		pieces []piece
		say    string
	}{
		{"behind the block", []piece{{0, 96, 8}}, "of block 0"},
		{"across its end", []piece{{0, 60, 8}}, "of block 0"},
		{"huge index", []piece{{maxBlocks, 0, 8}}, "of block 8388608"},
		{"not whole", []piece{{0, 0, 32}}, "not whole"},
		{"hole", []piece{{0, 0, 32}, {0, 40, 24}}, "not whole"},
		{"same bytes twice", []piece{{0, 0, 32}, {0, 0, 32}}, "not whole"},
	} {
		conn, told := memEnd(t, receiveOptions{slots: 64, window: 16})
		out, err := conn.Open(t.Context(), transport.Request{Kind: kindPerf, Meta: askOf(64)})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range c.pieces {
			l, err := out.Lease(t.Context())
			if err != nil {
				break // it has ended
			}
			if _, err := l.Reserve(p.block, p.offset, p.n); err != nil {
				t.Fatal(err)
			}
			out.Send(t.Context(), l)
		}
		if _, err := out.Finish(t.Context()); !errors.Is(err, transport.ErrCancelled) || !strings.Contains(err.Error(), c.say) {
			t.Errorf("%s: %v, want %q", c.name, err, c.say)
		}
		if s := <-told; s.OK || !strings.Contains(s.Why, c.say) {
			t.Errorf("%s: %+v", c.name, s)
		}
	}
}

func TestReceiverTakesPiecesInAnyOrder(t *testing.T) {
	conn, told := memEnd(t, receiveOptions{slots: 64, window: 16})
	out, err := conn.Open(t.Context(), transport.Request{Kind: kindPerf, Meta: askOf(64)})
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range [][2]int{{1, 32}, {0, 40}, {1, 0}, {0, 0}, {0, 24}, {1, 0}, {0, 8}} {
		l, err := out.Lease(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Reserve(uint32(at[0]), uint64(at[1]), min(32, 64-at[1])); err != nil {
			t.Fatal(err)
		}
		if err := out.Send(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	end, err := out.Finish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r, err := parseReport(end.Result)
	if err != nil || r.Blocks != 2 || r.Bytes != 128 || r.Frames != 7 {
		t.Errorf("%+v, %v", r, err)
	}
	if s := <-told; !s.OK || s.Blocks != 2 {
		t.Errorf("%+v", s)
	}
}

func TestTakeBack(t *testing.T) {
	p := &phase{sendingEnd: &sendingEnd{o: sendOptions{frame: 4096, shape: plainShape(64, 4096)}}}
	now := time.Now()
	p.starts, p.acks = []time.Time{now, now}, []time.Time{now, now}
	for _, m := range []transport.Piece{
		{Block: 2, Length: 8}, {Block: 1, Offset: 60, Length: 8}, {Block: 1, Offset: 64, Length: 8}, {Block: 1}, {Block: 1, Length: 7},
	} {
		if err := p.takeBack(m); !errors.Is(err, transport.ErrProtocol) {
			t.Errorf("%+v: %v", m, err)
		}
	}
	if s := p.sum(); s.blocks != 2 || s.resent != 0 {
		t.Errorf("%+v", s)
	}
	if err := p.takeBack(transport.Piece{Block: 1, Offset: 8, Length: 56}); err != nil {
		t.Error(err)
	}
	if s := p.sum(); s.blocks != 1 || s.bytes != 64 || s.resent != 56 {
		t.Errorf("%+v", s)
	}
	p.acked([]uint32{1}, now.Add(time.Second))
	if s := p.sum(); s.blocks != 2 || s.seconds != 1 {
		t.Errorf("%+v", s)
	}
}

func timesOfAll(all ...time.Duration) *stats.Times {
	t := stats.NewTimes()
	for _, d := range all {
		t.Record(d)
	}
	return t
}

func TestSettleDecides(t *testing.T) {
	s := sent{blocks: 2, bytes: 128, seconds: 0.5, times: timesOfAll(1, 2)}
	good := report{Blocks: 2, Bytes: 128, Verified: 128}
	for _, c := range []struct {
		name string
		sum  string
		s    sent
		peer report
		ok   bool
	}{
		{"good", "xxh3-64", s, good, true},
		{"no checksum", "none", s, report{Blocks: 2, Bytes: 128}, true},
		{"nothing sent", "xxh3-64", sent{times: timesOfAll()}, report{}, false},
		{"fewer blocks", "xxh3-64", s, report{Blocks: 1, Bytes: 128, Verified: 128}, false},
		{"fewer bytes", "xxh3-64", s, report{Blocks: 2, Bytes: 64, Verified: 128}, false},
		{"not verified", "xxh3-64", s, report{Blocks: 2, Bytes: 128, Verified: 127}, false},
	} {
		r := result{Sum: c.sum, Program: "pdperf", Direction: "push", Processes: 2}
		r.settle(c.s, c.peer)
		if r.OK != c.ok || (r.Why == "") != c.ok {
			t.Errorf("%s: %v, %q", c.name, r.OK, r.Why)
		}
		for _, asJSON := range []bool{true, false} {
			var o output
			err := r.print(streams{out: &o}, asJSON)
			var status *statusError
			if (err == nil) != c.ok || err != nil && (!errors.As(err, &status) || status.code != exitFailed) {
				t.Errorf("%s: %v", c.name, err)
			}
			if asJSON {
				parsed(t, o.String())
			}
		}
	}
}

func TestCPUSince(t *testing.T) {
	a, b := &cpuUse{User: 1, System: 2, Voluntary: 3, Involuntary: 4}, &cpuUse{User: 2, System: 4, Voluntary: 10, Involuntary: 20}
	if got := b.since(a, 2e9); *got != (cpuUse{User: 1, System: 2, PerGB: 1.5, Voluntary: 7, Involuntary: 16}) {
		t.Errorf("%+v", got)
	}
	if got := b.since(a, 0); got.PerGB != 0 {
		t.Errorf("%+v", got)
	}
	var none *cpuUse
	if none.since(a, 1) != nil || a.since(nil, 1) != nil {
		t.Error("CPU time that the system does not tell")
	}
}

func TestSocketsSince(t *testing.T) {
	before := []socketFacts{{Local: "a", Remote: "b", Sent: 10, Retransmits: 1}, {Local: "a", Remote: "c", Received: 5}}
	after := []socketFacts{{Local: "a", Remote: "b", Sent: 12, Retransmits: 3}, {Local: "a", Remote: "c", Received: 100}, {Local: "a", Remote: "d", Sent: 7}}
	got := socketsSince(after, before)
	if len(got) != 3 || got[0].Remote != "c" || got[0].Received != 95 || got[1].Remote != "d" || got[2].Sent != 2 || got[2].Retransmits != 2 {
		t.Errorf("%+v", got)
	}
	if got := socketsSince(make([]socketFacts, 100), nil); len(got) != maxSockets {
		t.Errorf("%d sockets", len(got))
	}
}

func TestSameConn(t *testing.T) {
	a := netip.MustParseAddrPort
	l, r := a("127.0.0.1:1000"), a("127.0.0.1:7412")
	for _, c := range []struct {
		local, remote string
		want          bool
	}{
		{"127.0.0.1:1000", "127.0.0.1:7412", true}, {"127.0.0.1:1001", "127.0.0.1:7412", true}, {"[::ffff:127.0.0.1]:1001", "127.0.0.1:7412", true},
		{"127.0.0.1:7412", "127.0.0.1:1000", false}, {"127.0.0.2:1001", "127.0.0.1:7412", false}, {"127.0.0.1:1001", "127.0.0.1:7413", false},
	} {
		if got := sameConn(a(c.local), a(c.remote), l, r); got != c.want {
			t.Errorf("%s to %s: %v", c.local, c.remote, got)
		}
	}
}

// TestFloorRefuses talks to a floor's receiving end as nobody should.
func TestFloorRefuses(t *testing.T) {
	for _, c := range []struct{ line, say string }{
		{`{"version":1,"block_bytes":1,"frame_bytes":1,"recv_frames":99999999999}`, "--recv-frames"},
		{`{"version":1,"block_bytes":9223372036854775807,"frame_bytes":1,"recv_frames":1}`, "--size"},
		{`{"version":1,"block_bytes":1,"frame_bytes":-1,"recv_frames":1}`, "--frame"},
		{`{"version":1,"block_bytes":1,"frame_bytes":1,"recv_frames":1,"low_water":-1}`, "--lowat"},
		{`{"version":2}`, "same release"},
		{`nonsense`, ""},
		{strings.Repeat("x", maxLine+1), ""},
	} {
		b := start(t, "floor", "--listen", "tcp://127.0.0.1:0")
		var d net.Dialer
		conn, err := d.DialContext(t.Context(), "tcp", strings.TrimPrefix(b.url, "tcp://"))
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(testPatience))
		io.WriteString(conn, c.line+"\n")
		answer, _ := io.ReadAll(conn) // perhaps a reset: not all was read
		if !strings.Contains(string(answer), c.say) {
			t.Errorf("%.40s: %s, want %q", c.line, answer, c.say)
		}
		conn.Close()
		if status := b.wait(); status != exitFailed {
			t.Errorf("%.40s: status %d", c.line, status)
		}
	}
}

func FuzzParseReport(f *testing.F) {
	good, err := json.Marshal(report{Blocks: 1, End: endResult{Platform: "linux", CPU: &cpuUse{}, Sockets: make([]socketFacts, 3)}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"end":{"platform":"\u001b[31m\n","sockets":[{"local":"\u0007"}]}}`))
	f.Add([]byte(`{}`))
	f.Add([]byte(`[`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := parseReport(text)
		if err != nil {
			return
		}
		if len(r.End.Sockets) > maxSockets {
			t.Fatalf("%d sockets", len(r.End.Sockets))
		}
		for _, s := range append(r.End.Sockets, socketFacts{Local: r.End.Platform}) {
			for _, word := range []string{s.Local, s.Remote, s.Congestion} {
				if !utf8.ValidString(word) || strings.ContainsFunc(word, unicode.IsControl) || len(word) > 64 {
					t.Fatalf("%q is for no terminal", word)
				}
			}
		}
		var o bytes.Buffer
		res := result{Processes: 2, Sum: "none"}
		res.settle(sent{blocks: 1, bytes: 8, seconds: 1, times: timesOfAll(1)}, r)
		printResult(streams{out: &o}, &res)
	})
}

func FuzzParseAsk(f *testing.F) {
	f.Add(askOf(16 << 20))
	f.Add([]byte(`{"version":1,"block_bytes":-1}`))
	f.Add([]byte(`{"version":1,"block_bytes":1e9}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		a, err := parseAsk(text)
		if err == nil && (a.BlockBytes < unit || a.BlockBytes > maxBlock) {
			t.Fatalf("%+v", a)
		}
	})
}

func FuzzParseSize(f *testing.F) {
	for _, s := range []string{"16MiB", "1.5GB", "-1", "1e9", "0x10", "1_000"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := parseSize(s)
		if err != nil {
			return
		}
		if again, err := parseSize(sizeText(v)); v < 0 || err != nil || again != v {
			t.Fatalf("%q: %d, written %q, reads %d, %v", s, v, sizeText(v), again, err)
		}
	})
}
