//go:build unix

package tcp

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"pdlink/transport"
)

// Of several that listen at one path at the same time one has it, and it is there.
func TestOneListenerAtAPath(t *testing.T) {
	for range 20 {
		path := filepath.Join(shortDir(t), "s")
		var won []transport.Listener
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				l, err := NewUnix(Options{}).Listen(t.Context(), path)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					won = append(won, l)
				} else if !errors.Is(err, syscall.EADDRINUSE) {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if len(won) != 1 {
			t.Errorf("%d were told that they listen", len(won))
		}
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Error(err)
		} else {
			c.Close()
		}
		for _, l := range won {
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		}
		if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
}

// Modes do not depend on the mask that a user has.
func TestUnixSocketWithoutAMask(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	path := filepath.Join(shortDir(t), "s")
	listenUnix(t, Options{}, path)
	for name, want := range map[string]fs.FileMode{path: fs.ModeSocket | 0o600, path + lockSuffix: 0o600} {
		if fi, err := os.Lstat(name); err != nil || fi.Mode() != want {
			t.Errorf("%s: mode %v, %v", name, fi.Mode(), err)
		}
	}
}

// What a killed process left is removed, and nothing else.
func TestUnixLeftovers(t *testing.T) {
	path := filepath.Join(shortDir(t), "s")
	temp := path + newSuffix
	if err := os.Mkdir(filepath.Dir(temp), 0o700); err != nil {
		t.Fatal(err)
	}
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: temp, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	if err := os.WriteFile(path+lockSuffix, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	listenUnix(t, Options{}, path)
	if left, err := os.ReadDir(filepath.Dir(path)); err != nil || len(left) != 2 {
		t.Errorf("there are %v, %v", left, err)
	}
	other := path + "2"
	if err := os.WriteFile(other+".new", []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewUnix(Options{}).Listen(t.Context(), other); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "in the way") {
		t.Errorf("a file in the way: %v", err)
	}
	if b, err := os.ReadFile(other + ".new"); err != nil || string(b) != "kept" {
		t.Errorf("the file that was there: %q, %v", b, err)
	}
	if _, err := os.Lstat(other + lockSuffix); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the lock is still there: %v", err)
	}
}

// Whose the other end is counts without keys.
func TestUnixUsers(t *testing.T) {
	for _, tt := range []struct {
		uid   uint32
		known bool
		me    int
		ok    bool
	}{
		{1000, true, 1000, true}, {0, true, 1000, true}, {1001, true, 1000, false}, {1001, false, 1000, true},
		{0, true, 0, true}, {1000, true, 0, false}, {1<<32 - 1, true, 0, false},
	} {
		if err := checkUID(tt.uid, tt.known, tt.me); (err == nil) != tt.ok || err != nil && !errors.Is(err, transport.ErrInsecure) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
	path := filepath.Join(shortDir(t), "s")
	s := listenUnix(t, Options{}, path)
	c, err := dialUnix(t.Context(), s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if uid, known, err := userOf(c); err != nil || known && int(uid) != os.Geteuid() {
		t.Errorf("user %d, %v, %v", uid, known, err)
	}
	tcpSock, _ := socketPair(t)
	if uid, known, err := userOf(tcpSock); err == nil && known && uid == uint32(os.Geteuid()) {
		t.Error("a socket that is no Unix socket has a user")
	}
}

// A path that is too long reads the same at both ends.
func TestUnixLongPath(t *testing.T) {
	long := filepath.Join(shortDir(t), strings.Repeat("x", maxSocketPath))
	_, dial := NewUnix(Options{}).Dial(t.Context(), long)
	_, listen := NewUnix(Options{}).Listen(t.Context(), long)
	for _, err := range []error{dial, listen} {
		if !errors.Is(err, transport.ErrInvalid) || !strings.Contains(err.Error(), "bytes, at most") || !strings.Contains(err.Error(), "use a shorter one") {
			t.Errorf("%v", err)
		}
	}
	// The longest that Listen takes works.
	dir := shortDir(t)
	s := listenUnix(t, Options{}, filepath.Join(dir, strings.Repeat("x", maxSocketPath-len(newSuffix)-len(dir)-1)))
	a, b := connect(t, NewUnix(Options{Session: smallRings(t)}), s)
	mustCarry(t, a, b)
}

// A command to paste is one for a directory with any name.
func TestUnixDirectoryIsQuoted(t *testing.T) {
	dir := filepath.Join(shortDir(t), "a b")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	if err := checkSocketDir(dir); err == nil || !strings.Contains(err.Error(), "`chmod go-w '"+dir+"'`") {
		t.Errorf("%v", err)
	}
}
