//go:build unix

package keys_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"pdlink/transport/keys"
)

// held opens a file and locks it, as another process does.
func held(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
}

// TestWhoMayListTheDirectoryCannotHoldIt: a lock of the directory itself is
// nothing.
func TestWhoMayListTheDirectoryCannotHoldIt(t *testing.T) {
	dir := t.TempDir()
	held(t, dir)
	writePeers(t, dir, aLine)
	if _, err := keys.RemovePeer(t.Context(), dir, "a"); err != nil {
		t.Error(err)
	}
}

// TestALockThatStays: the wait is bounded, ends with its context, and the error
// says what to do.
func TestALockThatStays(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "some keys")
	if _, err := keys.Init(t.Context(), dir, false); err != nil {
		t.Fatal(err)
	}
	writePeers(t, dir, aLine)
	path := filepath.Join(dir, ".lock")
	held(t, path)
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		_, err := keys.RemovePeer(t.Context(), dir, "a")
		if !errors.Is(err, keys.ErrLocked) || !strings.Contains(err.Error(), "`fuser '"+path+"'`") || time.Since(begin) > 6*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begin = time.Now()
		_, err = keys.Init(ctx, dir, true)
		if !errors.Is(err, context.Canceled) || time.Since(begin) > 2*time.Second {
			t.Errorf("after %v: %v", time.Since(begin), err)
		}
	})
}

// TestALockThatOthersCanOpen is refused: they could hold it.
func TestALockThatOthersCanOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "some keys")
	if _, err := keys.Init(t.Context(), dir, false); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, ".lock")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	err := keys.AddPeer(t.Context(), dir, keys.Peer{Name: "a", Key: parse(t, rfcText)})
	if !errors.Is(err, keys.ErrPermissions) || !strings.Contains(err.Error(), "run `chmod 600 '"+path+"'`") {
		t.Errorf("%v", err)
	}
}

// TestRevocationWithoutDescriptors: a process whose descriptors were all used up
// still reads who was revoked.
func TestRevocationWithoutDescriptors(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	if _, err := keys.Init(t.Context(), dir, false); err != nil {
		t.Fatal(err)
	}
	writePeers(t, dir, aLine+bLine)
	s, err := keys.Open(dir, keys.Options{Poll: 5 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	a, b := admit(t, s, parse(t, rfcText)), admit(t, s, parse(t, seqText))
	file, err := os.OpenFile(filepath.Join(dir, keys.PeersFile), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	few := was
	few.Cur = 64
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &was)
	var all []*os.File
	defer func() {
		for _, f := range all {
			f.Close()
		}
	}()
	for !errors.Is(err, unix.EMFILE) {
		var f *os.File
		if f, err = os.Open(os.DevNull); err == nil {
			all = append(all, f)
		} else if !errors.Is(err, unix.EMFILE) {
			t.Fatal(err)
		}
	}
	if _, err := file.WriteAt([]byte("#"), 0); err != nil { // a is a comment now
		t.Fatal(err)
	}
	select {
	case <-a.Revoked:
	case <-time.After(5 * time.Second):
		t.Error("the peers file is not read")
	}
	if ended(b) {
		t.Error("another peer was revoked")
	}
}
