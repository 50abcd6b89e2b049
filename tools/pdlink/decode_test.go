package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pdlink/bridge"
)

// listeningEvent is a receiver's first event.
func listeningEvent(t *testing.T, r *receiver) listening {
	t.Helper()
	var e listening
	if err := json.Unmarshal(r.out.events("listening")[0], &e); err != nil {
		t.Fatal(err)
	}
	return e
}

func TestDecodeSaysWhereBlocksGo(t *testing.T) {
	none := &expectation{}
	fresh := filepath.Join(t.TempDir(), "a", "store")
	r := startReceiver(t, fresh)
	if e := listeningEvent(t, r); e.Store != fresh || !e.New || e.Blocks != 0 {
		t.Errorf("a new store: %+v", e)
	}
	r.stop(t, none, fresh)
	if !strings.Contains(r.err.String(), "is this the decoder's store?") {
		t.Errorf("not a word about a store that was not there: %v", r)
	}
	replayJSON(t, exitOK, filepath.Join(casesDir, "kv-qwen3"), "--store", fresh)
	r = startReceiver(t, fresh)
	if e := listeningEvent(t, r); e.Store != fresh || e.New || e.Blocks != 5 {
		t.Errorf("a store with blocks: %+v", e)
	}
	r.signal()
	if status := r.wait(); status != exitOK || r.err.String() != hurry+"\n" {
		t.Errorf("status %d: %v", status, r)
	}
}

// TestAPortThatIsTakenLeavesNoStore: and it is no fault of the command line.
func TestAPortThatIsTakenLeavesNoStore(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	store := filepath.Join(t.TempDir(), "store")
	status, _, errOut := cli(t, "decode", "--listen", "tcp://"+l.Addr().String(), "--store", store)
	if status != exitFailed || !strings.Contains(errOut, "in use") {
		t.Errorf("status %d: %s", status, errOut)
	}
	if _, err := os.Stat(store); err == nil {
		t.Error("the store was made all the same")
	}
}

// TestSuspiciousStoresAreTold: what is possible and hardly meant.
func TestSuspiciousStoresAreTold(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("letter.txt", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, errOut := cli(t, "replay", "bundled:kv-qwen3", "--store", dir)
	if !strings.Contains(errOut, "warning: ") || !strings.Contains(errOut, "none of a store's folders") {
		t.Errorf("%s", errOut)
	}
	t.Setenv("HOME", t.TempDir())
	for store, want := range map[string]string{"~/store": filepath.Join(os.Getenv("HOME"), "store"), "./~": filepath.Join(dir, "~")} {
		if status, _, errOut := cli(t, "replay", "bundled:kv-qwen3", "--store="+store); status != exitOK {
			t.Errorf("%s: status %d: %s", store, status, errOut)
		}
		if _, err := os.Stat(want); err != nil {
			t.Errorf("%s: %v", store, err)
		}
	}
}

// TestStoppingTellsTheSenders: a receiver that is interrupted still says how far
// it got.
func TestStoppingTellsTheSenders(t *testing.T) {
	want := expect(t, "kv-qwen3", "5")
	store := t.TempDir()
	r := startReceiver(t, store, "--part-wait", patience.String())
	// The receiver may come back: it is not waited for long.
	p := start(t, "replay", filepath.Join(casesDir, want.name), "--to", "tcp://"+r.addr, "--format", want.format,
		"--part", "1/2", "--retry", "1s", "--timeout", patience.String(), "--json")
	// It has sent its part when the receiver has as much on the disk.
	if !eventually(processLimit, func() bool { return want.check(t, store).parts == len(want.hashes) }) {
		t.Fatalf("nothing arrives: %v", p)
	}
	r.stop(t, want, store)
	var res replayResult
	status := p.wait()
	if err := json.Unmarshal([]byte(p.out.String()), &res); err != nil {
		t.Fatalf("status %d: %v: %v", status, err, p)
	}
	if status != exitFailed || res.State != bridge.Partial || !strings.Contains(res.Reason, "stopped") {
		t.Errorf("status %d: %v", status, p)
	}
	if !strings.Contains(p.err.String(), "at the same time") {
		t.Errorf("no word about parts: %v", p)
	}
	if v := r.verdicts(t); len(v) != 1 || v[0].State != bridge.Partial || v[0].Verdict != res.Verdict || v[0].Transfer != res.Transfer {
		t.Errorf("the receiver says %+v, the sender %+v", v, res)
	}
}

// TestRefusedOffersAreEvents: and the end of --once.
func TestRefusedOffersAreEvents(t *testing.T) {
	store, kv := t.TempDir(), filepath.Join(casesDir, "kv-qwen3")
	replayJSON(t, exitOK, kv, "--store", store)
	r := startReceiver(t, store, "--once")
	res := replayJSON(t, exitFailed, kv, "--to", "tcp://"+r.addr, "--format", "5")
	status := r.wait()
	events := r.out.events("declined")
	if status != exitFailed || len(events) != 1 || len(r.out.events("ended")) != 1 {
		t.Fatalf("status %d: %v", status, r)
	}
	var e declinedEvent
	if err := json.Unmarshal(events[0], &e); err != nil {
		t.Fatal(err)
	}
	if e.State != bridge.Declined || e.State != res.State || e.Reason != res.Reason || e.Transfer != res.Transfer || e.Verdict != res.Verdict {
		t.Errorf("the receiver says %+v, the sender %+v", e, res)
	}
}

// TestADuplicateDoesNotEndTheTransferThatRuns: with --once.
func TestADuplicateDoesNotEndTheTransferThatRuns(t *testing.T) {
	store, kv := t.TempDir(), filepath.Join(casesDir, "kv-qwen3")
	r := startReceiver(t, store, "--once", "--part-wait", patience.String())
	part := func(i string, flags ...string) *process {
		return start(t, append([]string{"replay", kv, "--to", "tcp://" + r.addr, "--part", i + "/2", "--json"}, flags...)...)
	}
	first := part("1")
	arrived := func() bool {
		files, err := filepath.Glob(filepath.Join(store, "?", ".*.part"))
		return err == nil && len(files) == 5
	}
	if !eventually(processLimit, arrived) || !eventually(processLimit, func() bool {
		again := part("1", "--retry", "0") // else it waits for the first to end, which waits for the second part
		again.wait()
		return len(r.out.events("declined")) > 0
	}) {
		t.Fatalf("a part that is sent already was not refused: %v", r)
	}
	second := part("2")
	if s1, s2, s3 := first.wait(), second.wait(), r.wait(); s1 != exitOK || s2 != exitOK || s3 != exitOK {
		t.Errorf("status %d, %d, %d: %v %v %v", s1, s2, s3, first, second, r)
	}
}

// TestDecodePorts: a front may be a port alone, and two flags that name one address are
// told from one that something else has.
func TestDecodePorts(t *testing.T) {
	for _, c := range []struct {
		args []string
		say  string
	}{
		{[]string{"--listen", "tcp://127.0.0.1:7411", "--front", "7411"}, "--listen tcp://127.0.0.1:7411 and --front 127.0.0.1:7411 are one address"},
		{[]string{"--listen", "tcp://0.0.0.0:7411", "--metrics", "7411"}, "--listen tcp://0.0.0.0:7411 and --metrics 7411 are one address"},
		{[]string{"--listen", "unix:///x", "--front", "9411", "--metrics", "9411"}, "--front 127.0.0.1:9411 and --metrics 9411 are one address"},
		{[]string{"--front", "http"}, "want a port (8012, on loopback) or host:port"},
		{[]string{"--front", "70000"}, "want a port (8012, on loopback) or host:port"},
	} {
		if status, _, errOut := cli(t, append([]string{"decode", "--decoder", "http://127.0.0.1:1"}, c.args...)...); status != exitUsage || !strings.Contains(errOut, c.say) {
			t.Errorf("%q: status %d: %s", c.args, status, errOut)
		}
	}
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"127.0.0.1:1", "127.0.0.1:1", true}, {"127.0.0.1:1", "127.0.0.1:2", false}, {"127.0.0.1:0", "127.0.0.1:0", false}, {"0.0.0.0:1", "10.0.0.5:1", true},
		{"10.0.0.5:1", "127.0.0.1:1", false}, {":1", "127.0.0.1:1", true}, {"mac:1", "mac:1", true}, {"mac:1", "127.0.0.1:1", false}, {"0.0.0.0:1", "[::1]:1", false},
	} {
		if got := sameAddress(c.a, c.b); got != c.same {
			t.Errorf("%s, %s: %t", c.a, c.b, got)
		}
	}
}
