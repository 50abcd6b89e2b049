package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"pdlink/bridge/front"
)

// played is a decoder with its plug-in whose answers were recorded, and an engine
// that answers as it is told. Neither computes anything: the tests are about what
// the commands say to each other.
type played struct {
	decoder, engine *httptest.Server
	store           string

	mu     sync.Mutex
	asked  []string // bodies of the engine's completions
	served string   // the engine's model
}

func play(t *testing.T) *played {
	t.Helper()
	p := &played{store: filepath.Join(t.TempDir(), "store"), served: "served"}
	recorded := func(name string) string {
		b, err := os.ReadFile(filepath.Join("..", "..", "bridge", "omlx", "plugin", "testdata", "omlx-0.5.3", name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Replace(string(b), `"/store"`, fmt.Sprintf("%q", p.store), 1)
	}
	plan, info := recorded("plan.json"), recorded("info.json")
	d := http.NewServeMux()
	d.HandleFunc("POST /pdlink/v1/plan", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, plan) })
	d.HandleFunc("GET /pdlink/v1/info", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, info) })
	d.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"choices":[],"usage":{"prompt_tokens_details":{"cached_tokens":0}}}`)
	})
	e := http.NewServeMux()
	e.HandleFunc("GET /v1/models", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, "no key", http.StatusUnauthorized)
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		fmt.Fprintf(w, `{"data":[{"id":%q}]}`, p.served)
	})
	e.HandleFunc("POST /v1/completions", func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asked = append(p.asked, string(b))
		http.Error(w, "prompt is too long", http.StatusBadRequest)
	})
	p.decoder, p.engine = httptest.NewServer(d), httptest.NewServer(e)
	t.Cleanup(p.decoder.Close)
	t.Cleanup(p.engine.Close)
	return p
}

// introduce is a worker that has loaded the decoder's model, and stays until the test ends.
func introduce(t *testing.T, socket string) {
	t.Helper()
	tell(t, greet(t, socket), engineFacts(t, same))
}

// greet is a worker that says HELLO, and stays until the test ends.
func greet(t *testing.T, socket string) *net.UnixConn {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	hello := make([]byte, 64)
	copy(hello, "PDLE\x01\x01")                                          // version 1, type 1
	copy(hello[16:], "an instance     ")                                 // 16 bytes
	hello[34], hello[36] = 1, 1                                          // one rank, one worker here
	hello[56], hello[57] = byte(os.Getpid()), byte(uint(os.Getpid())>>8) // for people
	if _, err := c.Write(hello); err != nil {
		t.Fatal(err)
	}
	c.SetReadDeadline(time.Now().Add(processLimit))
	if n, err := c.Read(hello); err != nil || n != 64 || hello[5] != 2 {
		t.Fatalf("not welcome: %d bytes, %v, %q", n, err, hello)
	}
	return c
}

// eventsOf are the events of a kind that a process has printed.
func eventsOf[T any](t *testing.T, p *process, kind string) []T {
	t.Helper()
	var all []T
	for _, line := range p.out.events(kind) {
		var e T
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		all = append(all, e)
	}
	return all
}

// TestPrefillAndFrontDoor: both commands with keys over TCP, from the first word to the
// last. What the host waits for is said, requests are told what became of them, and what
// is asked of the engine is of our own making.
func TestPrefillAndFrontDoor(t *testing.T) {
	p := play(t)
	mac, spark := paired(t)
	socket := filepath.Join(t.TempDir(), "engine.sock")
	decode := start(t, "decode", "--json", "--listen", "tcp://127.0.0.1:0", "--keys", mac, "--decoder", p.decoder.URL,
		"--front", "127.0.0.1:0", "--min-tokens", "100", "--min-tail", "100")
	decode.await(t, "it listens", func() bool { return len(decode.out.events("listening")) == 1 })
	door := eventsOf[listening](t, decode, "listening")[0]
	t.Setenv(engineKeyEnv, "secret")
	prefill := start(t, "prefill", "--json", "--to", door.Listen, "--keys", spark, "--peer", "mac", "--engine", p.engine.URL, "--socket", socket,
		"--model", "tiny-qwen3=served", "--slots", "8", "--name", "spark", "--mem-floor", "-1")
	prefill.await(t, "it waits for a worker", func() bool {
		e := eventsOf[sidecarReady](t, prefill, "waiting")
		return len(e) > 0 && strings.Contains(e[len(e)-1].Reason, "none of its workers is connected to "+socket)
	})
	post := func() string {
		t.Helper()
		body := fmt.Sprintf(`{"model":"tiny-qwen3","user":"mallory","prompt":%q}`, strings.Repeat("x", 300))
		r, err := http.Post("http://"+door.Front+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK || !strings.Contains(string(b), "choices") {
			t.Errorf("%d %s %v", r.StatusCode, b, err)
		}
		return r.Header.Get("X-PDLink")
	}
	const waits = "spark is connected and waits: the engine answers, but none of its workers is connected to "
	decode.await(t, "it tells that the host waits", func() bool {
		return strings.Contains(decode.err.String(), ") is connected and waits: the engine answers, but none")
	})
	if v := post(); !strings.HasPrefix(v, "bypass; no prefill host takes prompts: "+waits) {
		t.Errorf("before: %q", v)
	}
	introduce(t, socket)
	prefill.await(t, "it is ready", func() bool { return len(prefill.out.events("ready")) == 1 })
	decode.await(t, "the host is known", func() bool { return strings.Contains(decode.err.String(), "reads prompts for") })
	if v := post(); !strings.HasPrefix(v, "declined; engine: prefill: engine refuses the prompt") || !strings.Contains(v, "prompt is too long") {
		t.Errorf("with a host: %q", v)
	}
	p.mu.Lock()
	if len(p.asked) != 1 || !strings.HasPrefix(p.asked[0], `{"model":"served","prompt":[42,71,`) || strings.Contains(p.asked[0], "mallory") ||
		!strings.Contains(p.asked[0], `"max_tokens":1,`) || !strings.Contains(p.asked[0], `"kv_transfer_params":{"pdlink":{"transfer":"`) {
		t.Errorf("asked %.300s", p.asked)
	}
	p.mu.Unlock()
	if _, err := os.Stat(filepath.Join(p.store, "0")); err != nil {
		t.Errorf("the transfer did not go to the store that the plug-in names: %v", err)
	}
	getPages(t, door.Front)
	prefill.signal()
	if status := prefill.wait(); status != exitOK || len(prefill.out.events("ended")) != 1 {
		t.Errorf("status %d: %v", status, prefill)
	}
	if e := eventsOf[sidecarCall](t, prefill, "call"); len(e) != 1 || e[0].State != "declined" || e[0].Tokens != 512 || e[0].Model != "tiny-qwen3" {
		t.Errorf("calls %+v", e)
	}
	decode.await(t, "the host is gone", func() bool { return strings.Contains(decode.err.String(), "takes no prompts any more") })
	decode.signal()
	if status := decode.wait(); status != exitOK {
		t.Errorf("status %d: %v", status, decode)
	}
	if e := eventsOf[requestEvent](t, decode, "request"); len(e) != 2 || e[0].Outcome != front.Bypassed || e[1].Outcome != front.Declined || e[1].Engine != "spark" {
		t.Errorf("requests %+v", e)
	}
	for _, x := range []*process{prefill, decode} {
		if why := x.crashed(); why != "" {
			t.Error(why)
		}
	}
}

// getPages looks at what the front serves itself.
func getPages(t *testing.T, addr string) {
	t.Helper()
	for path, want := range map[string]string{
		"/pdlink/transfers": `"outcome":"declined"`, "/pdlink/metrics": `pdlink_requests_total{outcome="declined"} 1`,
		"/pdlink/v1/info": "404", "/pdlink": "404",
	} {
		r, err := http.Get("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || !strings.Contains(fmt.Sprint(r.StatusCode, string(b)), want) {
			t.Errorf("%s: %d %s %v", path, r.StatusCode, b, err)
		}
	}
}

// TestPrefillWithoutAFrontDoor: a decoder's host that only receives says so, and the
// prefill host tells what to do.
func TestPrefillWithoutAFrontDoor(t *testing.T) {
	p := play(t)
	r := startReceiver(t, t.TempDir())
	socket := filepath.Join(t.TempDir(), "engine.sock")
	t.Setenv(engineKeyEnv, "secret")
	prefill := start(t, "prefill", "--to", "tcp://"+r.addr, "--engine", p.engine.URL, "--socket", socket, "--slots", "8")
	prefill.await(t, "it waits", func() bool { return strings.Contains(prefill.out.String(), "waiting: the engine answers") })
	introduce(t, socket)
	prefill.await(t, "it is told", func() bool { return strings.Contains(prefill.err.String(), "start it with --decoder") })
	if n := len(r.out.events("declined")); n != 0 {
		t.Errorf("%d transfers were declined: %v", n, r)
	}
	// The receiver is started again: the connection comes back by itself.
	r.kill()
	again := start(t, "decode", "--listen", "tcp://"+r.addr, "--discard")
	again.await(t, "it listens", func() bool { return again.out.String() != "" })
	prefill.await(t, "it is connected again", func() bool { return strings.Contains(prefill.out.String(), "again") })
	prefill.signal()
	if status := prefill.wait(); status != exitOK {
		t.Errorf("status %d: %v", status, prefill)
	}
}

// TestPrefillSaysWhatIsWrong: what ends it at once, with the cure.
func TestPrefillSaysWhatIsWrong(t *testing.T) {
	here := t.TempDir()
	to := []string{"prefill", "--to", "tcp://127.0.0.1:1", "--socket", filepath.Join(here, "e.sock")}
	for _, c := range []struct {
		args []string
		say  string
	}{
		{[]string{"prefill"}, "--to URL"},
		{append(to, "--engine", "127.0.0.1:8000"), "want http://host:port"},
		{append(to, "--model", "x"), "want DECODER=ENGINE"},
		{append(to, "--model", "x=a", "--model", "x=b"), "twice"},
		{append(to, "--retry", "0s"), "--retry"},
		{append(to, "--slots", "-1"), "--slots"},
		{append(to, "--slots", "100000"), "--slots 100000"},
		{append(to, "--model-config", "x.json"), "--model-config is for --weights"},
		{append(to, "--weights", "x"), "--model-config FILE"},
		{append(to, "--weights", "x", "--model-config", filepath.Join(here, "none")), "--model-config"},
		{[]string{"prefill", "--to", "tcp://127.0.0.1:1", "--socket", filepath.Join(here, "no", "e.sock")}, "make the directory"},
		{[]string{"prefill", "--to", "tcp://127.0.0.1:0"}, "port 0"},
		{[]string{"prefill", "--to", "tcp://192.0.2.1:7411", "--keys", filepath.Join(here, "keys"), "--socket", filepath.Join(here, "k.sock")}, "keys init"},
		{[]string{"decode", "--decoder", "mac"}, "want http://host:port"},
		{[]string{"decode", "--store", here, "--front", "127.0.0.1:1"}, "--front is for --decoder"},
		{[]string{"decode", "--store", here, "--min-tokens", "1"}, "--min-tokens is for --decoder"},
		{[]string{"decode", "--decoder", "http://127.0.0.1:1", "--discard"}, "exclude each other"},
		{[]string{"decode", "--decoder", "http://127.0.0.1:1", "--front", "eight"}, "want a port (8012, on loopback) or host:port"},
		{[]string{"decode", "--decoder", "http://127.0.0.1:1", "--per-engine", "0"}, "--per-engine 0: want 1 or more"},
		{[]string{"decode", "--decoder", "http://127.0.0.1:1", "--queue-wait", "0s"}, "--queue-wait 0s: want a time"},
		{[]string{"decode", "--decoder", "http://127.0.0.1:1", "--keep-alive", "-1s"}, "--keep-alive -1s"},
		{[]string{"decode", "--decoder", "http://127.0.0.1:1", "--decoder-rate", "-1"}, "--decoder-rate -1"},
		{[]string{"decode", "--decoder", "http://127.0.0.1:8012"}, "requests would come back for ever"},
		{append(to, "--to", "tcp://127.0.0.1:1"), "is there twice"},
		{append(to, "--to", "tcp://127.0.0.1"), "want tcp://host:port"},
		{[]string{"prefill", "--to", "tcp://127.0.0.1:1", "--socket", filepath.Join(here, strings.Repeat("x", 108))}, "at most 107 bytes"},
	} {
		if status, _, errOut := cli(t, c.args...); status != exitUsage || !strings.Contains(errOut, c.say) {
			t.Errorf("%v: status %d: %s", c.args, status, errOut)
		}
	}
}

// TestFrontPortInUse: nothing is left open.
func TestFrontPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	status, _, errOut := cli(t, "decode", "--listen", "tcp://127.0.0.1:0", "--decoder", "http://127.0.0.1:1", "--front", l.Addr().String())
	if status != exitFailed || !strings.Contains(errOut, "or give --front another port") {
		t.Errorf("status %d: %s", status, errOut)
	}
	status, _, errOut = cli(t, "decode", "--listen", "tcp://"+l.Addr().String(), "--discard")
	if status != exitFailed || !strings.Contains(errOut, "or give --listen another port") {
		t.Errorf("status %d: %s", status, errOut)
	}
	status, _, errOut = cli(t, "decode", "--listen", "unix://"+filepath.Join(t.TempDir(), "no", "s"), "--discard")
	if status != exitFailed || !strings.Contains(errOut, "make the directory: `mkdir -p ") {
		t.Errorf("status %d: %s", status, errOut)
	}
}
