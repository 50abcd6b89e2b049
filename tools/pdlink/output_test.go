package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// full is a disk that took some bytes and takes no more.
type full struct{ room int }

var errFull = errors.New("no room here")

func (f *full) Write(p []byte) (int, error) {
	if f.room -= len(p); f.room < 0 {
		return 0, errFull
	}
	return len(p), nil
}

// TestLostOutputIsAFailure: a result that nobody can read is none.
func TestLostOutputIsAFailure(t *testing.T) {
	kv := filepath.Join(casesDir, "kv-qwen3")
	store := filepath.Join(kv, "expected")
	for _, args := range [][]string{
		{"version"}, {"version", "--json"}, {"replay", kv, "--discard"}, {"replay", kv, "--discard", "--json"},
		{"demo"}, {"demo", "--json"}, {"store", "ls", store}, {"store", "ls", store, "--json"}, {"store", "verify", store},
		{"store", "verify", store, "--json"}, {"store", "diff", store, store}, {"store", "diff", store, store, "--json"}, {"replay", "--help"},
	} {
		var e bytes.Buffer
		status := run(t.Context(), args, newStreams(&full{10}, &e))
		if status != exitFailed || !strings.HasSuffix(e.String(), "pdlink: output is lost: no room here\n") {
			t.Errorf("%v: status %d: %s", args, status, e.String())
		}
	}
}

// TestDecodeOutlivesTheReaderOfItsEvents: the blocks are what counts.
func TestDecodeOutlivesTheReaderOfItsEvents(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	store := t.TempDir()
	cmd := exec.Command(self, "decode", "--listen", "tcp://127.0.0.1:0", "--store", store)
	cmd.Env = append(os.Environ(), mainEnv+"=1", "GORACE=atexit_sleep_ms=0")
	var errOut output
	cmd.Stderr = &errOut
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	limit := time.AfterFunc(processLimit, func() { cmd.Process.Kill() })
	defer limit.Stop()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err, errOut.String())
	}
	abs, err := filepath.Abs(store)
	if err != nil {
		t.Fatal(err)
	}
	addr, rest, _ := strings.Cut(strings.TrimPrefix(line, "listening on tcp://"), " ")
	if rest != "into "+abs+" (0 blocks)\n" {
		t.Errorf("first line %q", line)
	}
	out.Close()
	for range 2 {
		res := replayJSON(t, exitOK, filepath.Join(casesDir, "kv-qwen3"), "--to", "tcp://"+addr)
		if res.Blocks != 5 {
			t.Errorf("%+v", res)
		}
	}
	cmd.Process.Signal(syscall.SIGTERM)
	cmd.Wait() // the state says how it went
	if status := cmd.ProcessState.ExitCode(); status != exitFailed || strings.Count(errOut.String(), "events are lost") != 1 {
		t.Errorf("%v: %s", cmd.ProcessState, errOut.String())
	}
}

// TestNobodyThere: what a sender says of an address where no decode listens, at once,
// and when it gives up.
func TestNobodyThere(t *testing.T) {
	for _, c := range []struct {
		name  string
		serve func(net.Conn)
		say   string // twice: at once too, since it is tried again
	}{
		{"tunnel with nothing behind it", func(c net.Conn) { c.Close() }, "through an ssh tunnel this means"},
		{"reset", func(c net.Conn) { c.(*net.TCPConn).SetLinger(0); c.Close() }, "through an ssh tunnel this means"},
		{"something else", func(c net.Conn) {
			io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
			io.Copy(io.Discard, c)
			c.Close()
		}, "something other than `pdlink decode`"},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go c.serve(conn)
			}
		}()
		status, out, errOut := cli(t, "replay", filepath.Join(casesDir, "kv-qwen3"), "--to", "tcp://"+l.Addr().String(), "--retry", "1s")
		if status != exitFailed || strings.Count(errOut, c.say) != 2 || !strings.Contains(errOut, "trying for 1s more") {
			t.Errorf("%s: status %d: %s%s", c.name, status, out, errOut)
		}
		l.Close()
	}
}
