package front

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"
)

// TestLineKeepsHalves: what is upgraded can end one direction.
func TestLineKeepsHalves(t *testing.T) {
	up := raw(t, func(c net.Conn, in *bufio.Reader) {
		b, err := io.ReadAll(in)
		if err == nil {
			c.Write(b)
		}
		c.Close()
	})
	c, err := newWay(&http.Transport{}, nil, 0).kept.DialContext(t.Context(), "tcp", up.Host)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "hello")
	half, ok := c.(interface{ CloseWrite() error })
	if !ok {
		t.Fatal("it cannot")
	}
	if err := half.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(c); err != nil || string(b) != "hello" {
		t.Errorf("%q, %v", b, err)
	}
	failing := newWay(&http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no way") }}, nil, 0)
	if _, err := failing.kept.DialContext(t.Context(), "tcp", up.Host); err == nil {
		t.Error("no error of a dialer")
	}
}

// sends is an upload of which nothing came yet.
func sends() *upload {
	return &upload{
		conn: http.NewResponseController(&recorder{header: http.Header{}}), left: func() error { return nil }, reading: make(chan struct{}, 1),
	}
}

// TestLineThatIsClosed: a body that is sent over a connection that ends, or has ended, is
// given up in any order of the two.
func TestLineThatIsClosed(t *testing.T) {
	for range 1000 {
		c, other := net.Pipe()
		l := &line{Conn: c, lines: &lines{}}
		u, done := sends(), make(chan struct{})
		go func() {
			defer close(done)
			l.Close()
		}()
		l.carries(u, false)
		<-done
		other.Close()
		if !u.lost() {
			t.Fatal("the body is waited for")
		}
	}
}

// gone is a connection whose other end has read so much of "hello" and was closed then.
func gone(t *testing.T, reads int) *line {
	t.Helper()
	up := raw(t, func(c net.Conn, in *bufio.Reader) {
		io.ReadFull(in, make([]byte, reads))
		c.Close()
	})
	c, err := net.Dial("tcp", up.Host)
	if err != nil {
		t.Fatal(err)
	}
	l := &line{Conn: c, lines: &lines{}}
	if reads > 0 {
		if _, err := io.WriteString(l, "hello"); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := l.Read(make([]byte, 1)); n != 0 || err != io.EOF { //nolint:errorlint // as readers say it
		t.Fatal(n, err)
	}
	return l
}

// TestLineThatIsRefused: what comes to a connection that its other end has closed is lost,
// though a Read finds its end alone; what was read before that is not.
func TestLineThatIsRefused(t *testing.T) {
	l := gone(t, len("hello"))
	l.Close()
	if l.lost {
		t.Error("what was read is lost")
	}
	l = gone(t, 0)
	waitFor(t, func() bool {
		_, err := io.WriteString(l, "hello")
		return err != nil
	})
	if l.Close(); !l.lost {
		t.Error("what could not be sent is not lost")
	}
	for range 10 { // the refusal may come after the close
		l = gone(t, 0)
		if _, err := io.WriteString(l, "hello"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
		if l.Close(); l.lost {
			break
		}
	}
	if !l.lost {
		t.Error("what was refused is not lost")
	}
	sealed := gone(t, 0)
	if _, err := io.WriteString(sealed, "bye"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	sealed.under()
	if sealed.Close(); sealed.lost {
		t.Error("the last word of TLS is taken for the request")
	}
}

// standing is a reader whose end a test says.
type standing chan struct{}

func (s standing) Read([]byte) (int, error) {
	<-s
	return 0, io.EOF
}

// TestSendBuffersAreCounted: a large one is memory for bodies, and is for those alone that
// are in memory: a client that stands holds none.
func TestSendBuffersAreCounted(t *testing.T) {
	for name, c := range map[string]struct {
		whole     bool
		room, has int64 // beside what is taken
	}{
		"in memory":       {true, sendBuffer + 10, 10},
		"no room":         {true, sendBuffer - 1, sendBuffer - 1},
		"comes meanwhile": {false, 2 * sendBuffer, 2 * sendBuffer},
	} {
		t.Run(name, func(t *testing.T) {
			room := semaphore.NewWeighted(c.room)
			to, other := net.Pipe()
			defer to.Close()
			l := &line{Conn: to, lines: &lines{room: room}}
			l.carries(nil, c.whole)
			got, body := make(chan string, 1), make(standing)
			go func() {
				b, _ := io.ReadAll(io.LimitReader(other, 5))
				got <- string(b)
			}()
			sent := make(chan error, 1)
			go func() {
				n, err := l.ReadFrom(io.MultiReader(strings.NewReader("hello"), body))
				if n != 5 {
					t.Errorf("%d bytes", n)
				}
				sent <- err
			}()
			if s := <-got; s != "hello" {
				t.Errorf("%q", s)
			}
			if room.TryAcquire(c.has + 1) {
				t.Error("more is free")
			}
			if !room.TryAcquire(c.has) {
				t.Error("less is free")
			}
			room.Release(c.has)
			close(body)
			if err := <-sent; err != nil {
				t.Error(err)
			}
			if !room.TryAcquire(c.room) {
				t.Error("it is not given back")
			}
		})
	}
}
