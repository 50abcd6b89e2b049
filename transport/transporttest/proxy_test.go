package transporttest

import (
	"bytes"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// through sends n bytes to a listener behind a proxy and returns what arrived
// there, with the error that ended it, and what the sender read after its last
// byte.
func through(t *testing.T, o ProxyOptions, n int, after func(*Proxy, net.Conn)) (p *Proxy, got []byte, recvErr, sendErr error) {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p = NewProxy(t, l.Addr().String(), o)
	received := start(func() ([]byte, error) {
		c, err := l.Accept()
		if err != nil {
			return nil, err
		}
		defer c.Close()
		var buf bytes.Buffer
		_, err = io.Copy(&buf, c)
		return buf.Bytes(), err
	})
	var dialer net.Dialer
	c, err := dialer.DialContext(t.Context(), "tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	data := make([]byte, n)
	content(1).fill(data, 0, 0)
	c.Write(data)
	if after != nil {
		after(p, c)
	}
	if tc, ok := c.(*net.TCPConn); ok && o.CutAfter == 0 {
		tc.CloseWrite()
	}
	c.SetReadDeadline(time.Now().Add(soon))
	_, sendErr = io.Copy(io.Discard, c)
	r := <-received
	return p, r.v, r.err, sendErr
}

// prefix checks that got is the first n bytes that were sent.
func prefix(t *testing.T, got []byte, n int) {
	t.Helper()
	if len(got) != n {
		t.Errorf("%d bytes arrived, want %d", len(got), n)
	}
	if err := content(1).check(got, 0, 0); err != nil {
		t.Error(err)
	}
}

func TestProxyForwards(t *testing.T) {
	p, got, recvErr, sendErr := through(t, ProxyOptions{Seed: 1, Delay: time.Millisecond}, 300_000, nil)
	if recvErr != nil || sendErr != nil {
		t.Errorf("errors %v, %v", recvErr, sendErr)
	}
	prefix(t, got, 300_000)
	if p.Passed() != 300_000 {
		t.Errorf("%d bytes counted", p.Passed())
	}
	p.Close()
	p.Close()
}

func TestProxyCuts(t *testing.T) {
	for _, reset := range []bool{false, true} {
		_, got, recvErr, sendErr := through(t, ProxyOptions{CutAfter: 12_345, Reset: reset}, 100_000, nil)
		if !reset {
			prefix(t, got, 12_345)
			if recvErr != nil {
				t.Errorf("orderly cut: receiver's error %v", recvErr)
			}
			continue
		}
		// A reset may overtake bytes that the receiver has not read yet.
		if err := content(1).check(got, 0, 0); err != nil || len(got) > 12_345 {
			t.Errorf("reset: %d bytes arrived, error %v", len(got), err)
		}
		if !errors.Is(recvErr, syscall.ECONNRESET) || !errors.Is(sendErr, syscall.ECONNRESET) {
			t.Errorf("reset: errors %v and %v", recvErr, sendErr)
		}
	}
}

func TestProxyHalfCloses(t *testing.T) {
	_, got, recvErr, sendErr := through(t, ProxyOptions{CutAfter: 777, HalfClose: true}, 5000, nil)
	prefix(t, got, 777)
	// The other direction goes on until the receiver closes.
	if recvErr != nil || sendErr != nil {
		t.Errorf("errors %v, %v", recvErr, sendErr)
	}
}

func TestProxyCorrupts(t *testing.T) {
	const n, every = 500_000, 10_000
	differ := func(seed uint64) (at []int) {
		_, got, _, _ := through(t, ProxyOptions{Seed: seed, CorruptEvery: every}, n, nil)
		if len(got) != n {
			t.Fatalf("%d bytes arrived", len(got))
		}
		want := make([]byte, n)
		content(1).fill(want, 0, 0)
		for i := range want {
			if got[i] != want[i] {
				at = append(at, i)
			}
		}
		return at
	}
	one := differ(5)
	if len(one) < n/every/2 || len(one) > 2*n/every {
		t.Errorf("%d bytes were damaged, want about %d", len(one), n/every)
	}
	if two := differ(6); len(one) > 0 && len(two) > 0 && one[0] == two[0] {
		t.Error("another seed gives the same damage")
	}
}

func TestProxySwallows(t *testing.T) {
	p, got, recvErr, _ := through(t, ProxyOptions{}, 1000, func(p *Proxy, c net.Conn) {
		if !within(soon, func() bool { return p.Passed() == 1000 }) {
			t.Error("bytes before Swallow did not pass")
		}
		p.Swallow()
		if _, err := c.Write(make([]byte, 5000)); err != nil {
			t.Error(err)
		}
	})
	prefix(t, got, 1000)
	if recvErr != nil || p.Passed() != 1000 {
		t.Errorf("error %v, %d bytes passed", recvErr, p.Passed())
	}
}

// TestProxyCutsOnce: after its cut it forwards other connections.
func TestProxyCutsOnce(t *testing.T) {
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p := NewProxy(t, l.Addr().String(), ProxyOptions{CutAfter: 1000, Once: true})
	for i, want := range []int{1000, 5000, 5000} {
		received := start(func() ([]byte, error) {
			c, err := l.Accept()
			if err != nil {
				return nil, err
			}
			defer c.Close()
			return io.ReadAll(c)
		})
		var dialer net.Dialer
		c, err := dialer.DialContext(t.Context(), "tcp", p.Addr())
		if err != nil {
			t.Fatal(err)
		}
		c.Write(make([]byte, 5000)) // the first one is cut
		c.Close()
		if r := <-received; len(r.v) != want || r.err != nil {
			t.Errorf("connection %d: %d bytes arrived, %v, want %d", i, len(r.v), r.err, want)
		}
	}
}
