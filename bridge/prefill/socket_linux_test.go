package prefill

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestFilesOfAnEmptyPacket: a packet without bytes reads as the end of a connection; what
// came with it is closed all the same.
func TestFilesOfAnEmptyPacket(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(pair[0])
	f := os.NewFile(uintptr(pair[1]), "end")
	end, err := net.FileConn(f)
	must(t, err)
	defer end.Close()
	must(t, f.Close())
	r, w, err := os.Pipe()
	must(t, err)
	defer r.Close()
	rights := unix.UnixRights(int(w.Fd()), int(w.Fd()), int(w.Fd()))
	packet := unix.Msghdr{Control: &rights[0]} // as it is: the library would put a byte in
	packet.SetControllen(len(rights))
	if _, _, e := unix.Syscall(unix.SYS_SENDMSG, uintptr(pair[0]), uintptr(unsafe.Pointer(&packet)), 0); e != 0 {
		t.Fatal(e)
	}
	must(t, w.Close())
	if n, files, err := receive(end.(*net.UnixConn), make([]byte, messageSize)); n != 0 || len(files) != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("%d bytes, %d files, %v", n, len(files), err)
	}
	must(t, r.SetReadDeadline(time.Now().Add(30*time.Second)))
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the files are open still: %v", err)
	}
	// Those before what cannot be read are not lost either.
	other, w, err := os.Pipe()
	must(t, err)
	defer other.Close()
	fd, err := unix.Dup(int(w.Fd()))
	must(t, err)
	must(t, w.Close())
	files, err := filesIn(append(unix.UnixRights(fd), make([]byte, unix.CmsgLen(0))...))
	if len(files) != 1 || err == nil {
		t.Errorf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		must(t, f.Close())
	}
}

// TestOthersSockets: what another program listens at, or put where the socket was, stays.
func TestOthersSockets(t *testing.T) {
	dir := t.TempDir()
	for _, network := range []string{"unix", "unixpacket", "unixgram"} {
		path := filepath.Join(dir, network)
		var other io.Closer
		var err error
		if network == "unixgram" {
			other, err = net.ListenUnixgram(network, &net.UnixAddr{Name: path, Net: network})
		} else {
			other, err = net.Listen(network, path)
		}
		must(t, err)
		before, err := os.Lstat(path)
		must(t, err)
		if s, err := Listen(t.Context(), Options{Socket: path, Slots: 4}); !errors.Is(err, ErrInUse) {
			t.Errorf("%s: %v", network, err)
			if err == nil {
				must(t, s.Close())
			}
		}
		if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s: its socket is gone: %v", network, err)
		}
		must(t, other.Close())
	}
	path := filepath.Join(dir, "mine")
	s, err := Listen(t.Context(), Options{Socket: path, Slots: 4})
	must(t, err)
	must(t, os.Remove(path))
	must(t, os.WriteFile(path, []byte("precious"), 0o600))
	must(t, s.Close())
	if b, err := os.ReadFile(path); string(b) != "precious" {
		t.Errorf("%q, %v", b, err)
	}
	// A lock that was removed does not make a live sidecar's socket free.
	path = filepath.Join(dir, "lock")
	s, err = Listen(t.Context(), Options{Socket: path, Slots: 4})
	must(t, err)
	must(t, os.Remove(path+".lock"))
	if _, err := Listen(t.Context(), Options{Socket: path, Slots: 4}); !errors.Is(err, ErrInUse) {
		t.Error(err)
	}
	must(t, s.Close())
}

// TestOtherUsers: with UIDs every user can connect, and is served if it is one of them.
func TestOtherUsers(t *testing.T) {
	const other, third = 65534, 65533
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o755))
	h := newHost(t, newDecoder(t), Options{Socket: filepath.Join(dir, "s"), UIDs: []uint32{other}})
	info, err := os.Lstat(h.socket)
	must(t, err)
	if info.Mode().Perm() != 0o666 {
		t.Errorf("mode %v", info.Mode())
	}
	if os.Getuid() != 0 {
		return // only root can be another user
	}
	at, err := os.Open(dir)
	must(t, err)
	defer at.Close()
	open := fmt.Sprintf("/proc/self/fd/%d/s", at.Fd()) // nobody else may come in above it
	for uid, want := range map[uintptr]msgType{other: typeWelcome, third: typeRefuse} {
		for range 2 {
			conn, err := dialAs(uid, open)
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
				return // nor can this root
			}
			must(t, err)
			good := helloOf(0, 1, 1)
			m := pack(typeHello, 0, 0, &good)
			if err := send(conn, m.appendTo(nil), nil); want == typeWelcome { // the other may have been refused by now
				must(t, err)
			}
			c := &client{tb: t, conn: conn}
			if m := c.hear(want); want == typeRefuse && m.code != codeDenied {
				t.Errorf("user %d: %v", uid, m.code)
			}
			conn.Close()
		}
	}
	eventually(t, "the stranger is told of", func() bool {
		h.faults.mu.Lock()
		defer h.faults.mu.Unlock()
		return len(h.faults.list) > 0
	})
	h.faults.mu.Lock()
	defer h.faults.mu.Unlock()
	if len(h.faults.list) != 1 || !strings.Contains(h.faults.list[0].Error(), "user 65533 is not accepted") {
		t.Errorf("told %v, want one word of the stranger", h.faults.list)
	}
}

// dialAs connects as another user: one thread becomes it, and ends.
func dialAs(uid uintptr, path string) (conn *net.UnixConn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); e != 0 {
			err = e
			return
		}
		conn, err = dialSocket(path)
	}()
	<-done
	return conn, err
}
