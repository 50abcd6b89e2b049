package tcp

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/transporttest"
)

// shortDir is a directory whose path leaves room for a socket's.
func shortDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("", "pd")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	return dir
}

func TestSuiteUnix(t *testing.T) {
	transporttest.Run(t, transporttest.Harness{
		Name:  "unix",
		Tries: secureTries,
		Links: func(tb testing.TB, a, b session.Options) (dial, listen transport.Link, addr string) {
			return NewUnix(options(a)), NewUnix(options(b)), filepath.Join(shortDir(tb), "s")
		},
	})
}

// listenUnix starts a listener that ends with the test.
func listenUnix(t *testing.T, o Options, path string) *listener {
	t.Helper()
	o.Session = smallRings(t)
	s, err := NewUnix(o).Listen(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s.(*listener)
}

func TestUnixSocketIsPrivate(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	s := listenUnix(t, Options{}, path)
	fi, err := os.Lstat(path)
	if err != nil || fi.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("mode %v, %v", fi.Mode(), err)
	}
	l := NewUnix(Options{Session: smallRings(t)})
	a, b := connect(t, l, s)
	for i, c := range []transport.Conn{a, b} {
		f := c.Facts()
		mine, its := f.Local, f.Remote
		if i == 1 {
			mine, its = its, mine
		}
		if f.Link != "unix" || f.Sealed || mine != "client of "+path || its != path {
			t.Errorf("facts %+v", f)
		}
		if c.(SocketReporter).Sockets() != nil {
			t.Error("facts of TCP about a Unix socket")
		}
	}
	mustCarry(t, a, b)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is still there: %v", err)
	}
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	mustCarry(t, b, a)
}

func TestUnixWithKeys(t *testing.T) {
	server, client := twoHosts(t)
	s := listenUnix(t, Options{Keys: server}, filepath.Join(shortDir(t), "s"))
	a, b := connect(t, NewUnix(Options{Keys: client, Peer: "server", Session: smallRings(t)}), s)
	if f := b.Facts(); !f.Sealed || f.Peer != "client" {
		t.Errorf("facts %+v", f)
	}
	mustCarry(t, a, b)
	if _, err := NewUnix(Options{Session: smallRings(t)}).Dial(t.Context(), s.Addr()); !errors.Is(err, transport.ErrInsecure) {
		t.Errorf("dial without keys: %v", err)
	}
}

func TestUnixListenReplacesWhatIsStale(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close() // as a process that was killed leaves it
	s := listenUnix(t, Options{}, path)
	a, b := connect(t, NewUnix(Options{Session: smallRings(t)}), s)
	mustCarry(t, a, b)
	if _, err := NewUnix(Options{}).Listen(t.Context(), path); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("listen where somebody listens: %v", err)
	}
	mustCarry(t, b, a)
}

func TestUnixListenRefuses(t *testing.T) {
	dir := shortDir(t)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := filepath.Join(dir, "open")
	if err := errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777)); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		o    Options
		path string
		want error
	}{
		"a file is there":                {Options{}, file, fs.ErrExist},
		"others can write the directory": {Options{}, filepath.Join(open, "s"), transport.ErrInsecure},
		"no directory":                   {Options{}, filepath.Join(dir, "none", "s"), fs.ErrNotExist},
		"path too long":                  {Options{}, filepath.Join(dir, strings.Repeat("x", maxSocketPath)), transport.ErrInvalid},
		"an option of TCP":               {Options{Congestion: "cubic"}, filepath.Join(dir, "s"), transport.ErrUnavailable},
	} {
		if s, err := NewUnix(tt.o).Listen(t.Context(), tt.path); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "kept" {
		t.Errorf("the file that was there: %q, %v", b, err)
	}
	if _, err := NewUnix(Options{}).Dial(t.Context(), filepath.Join(dir, "s")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("dial where nothing is: %v", err)
	}
	if _, err := NewUnix(Options{Congestion: "cubic"}).Dial(t.Context(), file); !errors.Is(err, transport.ErrUnavailable) {
		t.Errorf("dial with an option of TCP: %v", err)
	}
}
