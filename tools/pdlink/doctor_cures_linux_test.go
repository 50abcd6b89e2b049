package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pdlink/bridge/prefill"
	"pdlink/tcp"
	"pdlink/transport"
	"pdlink/transport/keys"
)

// TestSocketCures: each way in which the engine's socket cannot be had, as it happens,
// and the cure that mends it.
func TestSocketCures(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	taken := filepath.Join(dir, "taken")
	one, err := prefill.Listen(t.Context(), prefill.Options{Socket: taken, Slots: 8, Reclaim: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close()
	for what, c := range map[string]struct {
		socket string
		is     error
		say    string
	}{
		"no directory": {filepath.Join(dir, "no", "s"), fs.ErrNotExist, "sudo install -d -o "},
		"a file":       {plain, prefill.ErrInUse, "that is a file: move it away"},
		"another one":  {taken, prefill.ErrInUse, "`sudo systemctl stop pdlink-prefill`"},
		"too long":     {filepath.Join(dir, strings.Repeat("s", 100)), nil, "at most 107 bytes"},
	} {
		s, err := prefill.Listen(t.Context(), prefill.Options{Socket: c.socket, Slots: 8, Reclaim: -1})
		if err == nil {
			s.Close()
			t.Errorf("%s: it listens", what)
			continue
		}
		if got := socketCure(c.socket, err); c.is != nil && !errors.Is(err, c.is) || !strings.Contains(got, c.say) {
			t.Errorf("%s: %v, cure %q, want %q", what, err, got, c.say)
		}
	}
	left := filepath.Join(dir, "left")
	if err := os.WriteFile(left+".lock", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := socketCure(left, fs.ErrPermission); !strings.Contains(got, "sudo rm -f "+left+" "+left+".lock") {
		t.Errorf("another user's lock: %q", got)
	}
	if got := socketCure(filepath.Join(dir, "s"), fs.ErrPermission); !strings.Contains(got, "sudo install -d -o ") {
		t.Errorf("another user's directory: %q", got)
	}
}

// TestAFileIsNoSidecar: doctor does not take it for one.
func TestAFileIsNoSidecar(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	found := doctor(t, exitFailed, "prefill", "--to", "tcp://127.0.0.1:1", "--engine", engineAt(t, "m"), "--socket", plain, "--mem-floor", "-1", "--slots", "8")
	if !has(found, "connector", levelFail, "move it away") || !has(found, "match", levelWarn, "") && has(found, "match", levelWarn, "stop pdlink prefill") {
		t.Errorf("%+v", found)
	}
}

// TestRefusedWorkerCures: the user that the kernel saw is in the flag.
func TestRefusedWorkerCures(t *testing.T) {
	if got := refusedCure([]string{"worker: user 1001 is not accepted: run", "worker: user 1001 is not accepted: run", "user 7 is not accepted"}); !strings.Contains(got, "uid = [1001, 7]") {
		t.Errorf("%q", got)
	}
	if got := refusedCure([]string{"it speaks version 9"}); !strings.Contains(got, "of the same release") {
		t.Errorf("%q", got)
	}
}

// TestPeerCures: of a dial that failed, by what it met.
func TestPeerCures(t *testing.T) {
	over := linkURL{scheme: schemeTCP, addr: "10.0.0.5:7411"}
	fast := linkURL{scheme: schemeRDMA, addr: "10.0.0.5:7411", device: "mlx5_0"}
	for _, c := range []struct {
		u   linkURL
		err error
		say string
	}{
		{over, syscall.ECONNREFUSED, "with --listen tcp://10.0.0.5:7411 (its default is for that host alone)"},
		{over, transport.ErrProtocol, "not that of the decoder or of --front"},
		{over, os.ErrDeadlineExceeded, "let its firewall pass the port"},
		{over, errors.Join(errors.New("late"), fmt.Errorf("x: %w", t.Context().Err())), "start `pdlink decode`"},
		{over, transport.ErrIncompatible, "compare `pdlink version`"},
		{over, keys.ErrRefused, "pair the two hosts again"},
		{over, transport.ErrInsecure, "pdlink keys init"},
		{over, tcp.ErrTurnedAway, "see the log of `pdlink decode` there"},
		{fast, transport.ErrUnavailable, "leave ?device= out"},
		{fast, fmt.Errorf("rdma: %w: the other end's link "+noRDMA, transport.ErrIncompatible), "with --listen rdma://10.0.0.5:7411, or use tcp://10.0.0.5:7411 here"},
		{linkURL{scheme: schemeUnix, addr: "/s"}, fs.ErrNotExist, "`pdlink decode --listen unix:///s`"},
	} {
		if got := peerCure(c.u, c.err); !strings.Contains(got, c.say) {
			t.Errorf("%v at %v: %q, want %q", c.err, c.u, got, c.say)
		}
	}
}

// TestDoctorOfTwoWays: one that does not lead there is a warning where the other one does.
func TestDoctorOfTwoWays(t *testing.T) {
	mac, spark := paired(t)
	decode := start(t, "decode", "--json", "--listen", "tcp://127.0.0.1:0", "--keys", mac, "--discard")
	decode.await(t, "it listens", func() bool { return len(decode.out.events("listening")) == 1 })
	to := eventsOf[listening](t, decode, "listening")[0].Listen
	args := []string{"prefill", "--to", "tcp://127.0.0.1:1", "--to", to, "--keys", spark, "--engine", engineAt(t, "m"), "--socket", filepath.Join(t.TempDir(), "s"), "--mem-floor", "-1", "--slots", "8"}
	found := doctor(t, exitFailed, args...) // no worker comes
	if !has(found, "peer", levelWarn, "another way leads there") || !has(found, "peer", levelOK, to+" answers, it is mac") || !has(found, "link", levelOK, to+": over this host's loopback") {
		t.Errorf("%+v", found)
	}
}

// TestDoctorOfASocket: free, had by a pdlink, and in no directory.
func TestDoctorOfASocket(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	found := doctor(t, exitOK, "decode", "--discard", "--listen", "unix://"+path)
	if !has(found, "listen", levelOK, path+" is free") {
		t.Errorf("%+v", found)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("it is there")
	}
	decode := start(t, "decode", "--json", "--listen", "unix://"+path, "--discard")
	decode.await(t, "it listens", func() bool { return len(decode.out.events("listening")) == 1 })
	if found := doctor(t, exitOK, "decode", "--discard", "--listen", "unix://"+path); !has(found, "listen", levelOK, "in use by a pdlink that runs") {
		t.Errorf("%+v", found)
	}
	if found := doctor(t, exitFailed, "decode", "--discard", "--listen", "unix://"+filepath.Join(dir, "no", "s")); !has(found, "listen", levelFail, "`mkdir -p "+filepath.Join(dir, "no")+"`") {
		t.Errorf("%+v", found)
	}
	if found := doctor(t, exitFailed, "decode", "--discard", "--listen", "rdma://127.0.0.1:0?device=none-such"); !has(found, "listen", levelFail, "pdlink doctor rdma") {
		t.Errorf("%+v", found)
	}
	if found := doctor(t, exitFailed, "decode", "--discard", "--listen", "tcp://127.0.0.1:7", "--keys", filepath.Join(dir, "none")); !has(found, "keys", levelFail, "run `pdlink keys init --dir ") {
		t.Errorf("%+v", found)
	}
}

// TestListenCures: of addresses that cannot be listened on.
func TestListenCures(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for addr, say := range map[string]string{
		l.Addr().String():  "sudo ss -ltnp 'sport = :",
		"192.0.2.1:7411":   "`ip -brief address` lists them",
		"no-such.invalid:": "an address of this host",
	} {
		l, err := net.Listen("tcp", addr)
		if err == nil {
			l.Close()
			t.Errorf("%s can be listened on", addr)
			continue
		}
		if got := listenError("front", addr, fmt.Errorf("--front %s: %w", addr, err)).Error(); !strings.Contains(got, say) {
			t.Errorf("%s: %q, want %q", addr, got, say)
		}
	}
	if got := listenCure("listen", "127.0.0.1:80", fs.ErrPermission); !strings.Contains(got, "a port from 1024 on") {
		t.Errorf("%q", got)
	}
	if err := errors.New("a store's"); listenError("listen", "x:1", err).Error() != "a store's" {
		t.Error("of another error")
	}
}

// TestFrontThatMeetsItself: requests would go round.
func TestFrontThatMeetsItself(t *testing.T) {
	for _, c := range []struct {
		decoder, front string
		want           bool
	}{
		{"http://127.0.0.1:8012", "127.0.0.1:8012", true}, {"http://localhost:8012/v1", "127.0.0.1:8012", true}, {"http://localhost:8012", "[::1]:8012", true},
		{"http://127.0.0.1:8012", "0.0.0.0:8012", true}, {"http://127.0.0.1:8012", ":8012", true}, {"http://mac:8012", "mac:8012", true},
		{"http://127.0.0.1", "127.0.0.1:80", true}, {"http://0.0.0.0:8012", "127.0.0.1:8012", true}, {"http://[::1]:8012", "[::]:8012", true},
		{"http://127.0.0.1:8000", "127.0.0.1:8012", false}, {"http://192.0.2.1:8012", "0.0.0.0:8012", false}, {"http://127.0.0.1:1", "127.0.0.1:0", false},
		{"http://mac:8012", "127.0.0.1:8012", false},
	} {
		u, err := parseHTTP("decoder", c.decoder)
		if err != nil {
			t.Fatal(err)
		}
		if got := meetsItself(u, c.front); got != c.want {
			t.Errorf("%s behind %s: %v", c.decoder, c.front, got)
		}
	}
}

// TestPrefillOfTwoWays: the second way is taken where the first does not lead there.
func TestPrefillOfTwoWays(t *testing.T) {
	mac, spark := paired(t)
	decode := start(t, "decode", "--json", "--listen", "tcp://127.0.0.1:0", "--keys", mac, "--discard")
	decode.await(t, "it listens", func() bool { return len(decode.out.events("listening")) == 1 })
	to := eventsOf[listening](t, decode, "listening")[0].Listen
	config := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "[prefill]\nto = ['tcp://127.0.0.1:1', %q]\n", to), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, "prefill", "--json", "--config", config, "--keys", spark, "--engine", engineAt(t, "m"), "--socket", filepath.Join(t.TempDir(), "s"), "--mem-floor", "-1", "--slots", "8")
	p.await(t, "it is connected", func() bool { return len(p.out.events("connected")) == 1 })
	began := eventsOf[sidecarStarted](t, p, "started")[0]
	if e := eventsOf[sidecarLink](t, p, "connected")[0]; e.To != to || began.To != "tcp://127.0.0.1:1" || len(began.Routes) != 2 || began.Routes[1] != to {
		t.Errorf("%+v, %+v", began, e)
	}
}
