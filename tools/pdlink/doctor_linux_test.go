package main

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pdlink/bridge/facts"
)

// engineAt is an engine that answers as vLLM does to what doctor asks.
func engineAt(t *testing.T, models ...string) string {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		var list []map[string]string
		for _, m := range models {
			list = append(list, map[string]string{"id": m})
		}
		json.NewEncoder(w).Encode(map[string]any{"data": list})
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"version":"0.32.1"}`) })
	mux.HandleFunc("POST /tokenize", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"count":1,"max_model_len":8192,"tokens":[1]}`) // another tokenizer, which does no harm
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// workersFor has workers look for a sidecar at a socket, as an engine's do, until the
// test ends. Each says what it has loaded; nil: nothing.
func workersFor(t *testing.T, socket string, docs ...[]byte) {
	t.Helper()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i, doc := range docs {
		f, err := os.Create(filepath.Join(t.TempDir(), "facts"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if _, err := f.Write(doc); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for {
				if c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"}); err == nil {
					comeAs(c, i, len(docs), doc, f)
					c.Close()
				}
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
				}
			}
		})
	}
	t.Cleanup(func() { close(stop); wg.Wait() }) // before the files are closed
}

// comeAs says HELLO and what was loaded, and stays until the sidecar goes.
func comeAs(c *net.UnixConn, rank, workers int, doc []byte, f *os.File) {
	hello := make([]byte, 64)
	copy(hello, "PDLE\x01\x01")
	copy(hello[16:], fmt.Sprintf("worker %9d", rank))
	hello[32], hello[34], hello[36] = byte(rank), byte(workers), byte(workers)
	if _, err := c.Write(hello); err != nil {
		return
	}
	if n, err := c.Read(hello); err != nil || n != 64 {
		return
	}
	if doc != nil && sendFacts(c, doc, f) != nil {
		return
	}
	c.SetReadDeadline(time.Now().Add(10 * time.Second))
	for {
		if n, err := c.Read(hello); err != nil || n == 0 {
			return
		}
	}
}

// TestDoctorPrefill: a host in good health, and each ailment with its cure. The decode
// host is a real one.
func TestDoctorPrefill(t *testing.T) {
	p := newPatient(t)
	mac, spark := paired(t)
	_, stranger := paired(t)
	decode := start(t, "decode", "--json", "--listen", "tcp://127.0.0.1:0", "--keys", mac, "--decoder", p.URL, "--front", "127.0.0.1:0")
	decode.await(t, "it listens", func() bool { return len(decode.out.events("listening")) == 1 })
	to := eventsOf[listening](t, decode, "listening")[0].Listen
	bare := start(t, "decode", "--json", "--listen", "tcp://127.0.0.1:0", "--keys", mac, "--discard")
	bare.await(t, "it listens", func() bool { return len(bare.out.events("listening")) == 1 })
	same := engineFacts(t, same)
	yarn := engineFacts(t, func(f *facts.Facts) { f.Rope["2"].Sin[0][4] *= 2 })
	float := engineFacts(t, func(f *facts.Facts) { f.DType = "F32" })
	mute := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // it has no /tokenize
		if r.URL.Path != "/v1/models" {
			http.NotFound(w, r)
			return
		}
		io.WriteString(w, `{"data":[{"id":"served"}]}`)
	}))
	defer mute.Close()
	less := engineFacts(t, func(f *facts.Facts) { f.Tensors, f.Unknown = nil, map[string]string{"tensors": "no norm"} })
	for name, c := range map[string]struct {
		workers [][]byte
		args    []string // behind those of a host in good health
		status  int
		check   string
		level   level
		say     string
	}{
		"well":          {[][]byte{same}, nil, exitOK, "match", levelWarn, "so this alone does no harm"},
		"well, all":     {[][]byte{same}, []string{"--engine", mute.URL}, exitOK, "match", levelOK, "tiny-qwen3 is the decoder's model, in everything that is compared"},
		"well, peer":    {[][]byte{same}, nil, exitOK, "peer", levelOK, "it is mac, and data is sealed"},
		"well, engine":  {[][]byte{same}, nil, exitOK, "engine", levelOK, "served takes prompts of up to 8192 tokens"},
		"well, clock":   {[][]byte{same}, nil, exitOK, "clock", levelOK, "ahead of this one's"},
		"well, ring":    {[][]byte{same}, nil, exitOK, "ring", levelOK, "a block has about"},
		"two workers":   {[][]byte{same, same}, nil, exitOK, "connector", levelOK, "2 workers of the engine came"},
		"yarn is lost":  {[][]byte{yarn}, nil, exitFailed, "match", levelFail, "rope of layer 2: pair 15 turned by"},
		"another dtype": {[][]byte{float}, nil, exitFailed, "match", levelFail, "dtype: BF16 at the decoder, F32 at the engine"},
		"two models":    {[][]byte{same, float}, nil, exitFailed, "match", levelFail, "have loaded different models"},
		"tells less":    {[][]byte{less}, nil, exitFailed, "connector", levelWarn, "tensors: no norm"},
		"does not tell": {[][]byte{nil}, nil, exitFailed, "connector", levelWarn, "update pdlink-vllm"},
		"no worker":     {nil, nil, exitFailed, "connector", levelFail, `start vLLM as this user with --kv-transfer-config '{"kv_connector": "PDLinkConnector"`},
		"well, vLLM":    {[][]byte{same}, nil, exitOK, "version", levelOK, "vLLM 0.32.1"},
		"no engine":     {[][]byte{same}, []string{"--engine", "http://127.0.0.1:1"}, exitFailed, "engine", levelFail, "start it, or name its address"},
		"another name":  {[][]byte{same}, []string{"--model", "tiny-qwen3=other"}, exitFailed, "engine", levelFail, "--model tiny-qwen3=other: the engine serves served"},
		"no model":      {[][]byte{same}, []string{"--model", "else=served"}, exitOK, "match", levelWarn, "else: the decoder has not loaded a model of this id"},
		"nobody there":  {[][]byte{same}, []string{"--to", "tcp://127.0.0.1:1"}, exitFailed, "peer", levelFail, "start `pdlink decode` there with --listen tcp://127.0.0.1:1"},
		"a stranger":    {[][]byte{same}, []string{"--keys", stranger}, exitFailed, "peer", levelFail, "pair the two hosts again"},
		"another peer":  {[][]byte{same}, []string{"--peer", "luna"}, exitFailed, "keys", levelFail, "luna"},
		"only receives": {[][]byte{same}, []string{"--to", eventsOf[listening](t, bare, "listening")[0].Listen}, exitOK, "match", levelWarn, "with --decoder"},
		"small ring":    {[][]byte{engineFacts(t, func(f *facts.Facts) { f.KVHeads = 64 })}, []string{"--slots", "8"}, exitFailed, "ring", levelFail, "two blocks have to fit: give --slots 24 or more"},
		"huge ring":     {[][]byte{same}, []string{"--slots", "100000"}, exitFailed, "memory", levelFail, "give --slots a smaller number"},
		"no memory":     {[][]byte{same}, []string{"--mem-floor", "999999999"}, exitFailed, "memory", levelFail, "--gpu-memory-utilization"},
		"no directory":  {nil, []string{"--socket", "/no/such/socket"}, exitFailed, "connector", levelFail, "make the directory /no/such"},
		"no weights":    {[][]byte{engineFacts(t, func(f *facts.Facts) { f.Kind = facts.KindDSV4 })}, nil, exitFailed, "weights", levelFail, "weights export"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			workersFor(t, socket, c.workers...)
			args := []string{"prefill", "--keys", spark, "--engine", engineAt(t, "served"), "--socket", socket, "--mem-floor", "-1", "--slots", "40"}
			if !slices.Contains(c.args, "--to") {
				args = append(args, "--to", to)
			}
			if !slices.Contains(c.args, "--model") {
				args = append(args, "--model", "tiny-qwen3=served")
			}
			if found := doctor(t, c.status, append(args, c.args...)...); !has(found, c.check, c.level, c.say) {
				t.Errorf("%+v, want %s %s %q", found, c.check, c.level, c.say)
			}
		})
	}
	if e := decode.err.String(); strings.Contains(e, "prefill host") {
		t.Errorf("the doctor was taken for a prefill host: %s", e)
	}
}

// TestDoctorVersion: a version of vLLM that the connector refuses is found, with what it
// would say.
func TestDoctorVersion(t *testing.T) {
	for _, c := range []struct {
		d     prefillDoctor
		level level
		say   string
	}{
		{prefillDoctor{version: "0.32.1"}, levelOK, "vLLM 0.32.1"},
		{prefillDoctor{version: "0.20.0"}, levelFail, "vLLM 0.20.0 is not supported by the connector, only 0.21, 0.28, 0.32"},
		{prefillDoctor{version: "0.35.0", came: true}, levelFail, "`pip install 'vllm==0.32.*'`"},
		{prefillDoctor{version: "0.30.0"}, levelFail, `"untested": true in kv_connector_extra_config`},
		{prefillDoctor{version: "0.30.0", came: true}, levelWarn, "tries it all the same"},
		{prefillDoctor{unsaid: io.EOF}, levelWarn, "does not say which vLLM it is: EOF"},
	} {
		if found := c.d.lookVersion(t.Context()); len(found) != 1 || !has(found, "", c.level, c.say) {
			t.Errorf("%+v: %+v, want %s %q", c.d.version, found, c.level, c.say)
		}
	}
	var d prefillDoctor
	if found := d.lookVersion(t.Context()); len(found) != 0 {
		t.Errorf("nobody was asked: %+v", found)
	}
}

// TestDoctorBesideASidecar: one that runs keeps its socket.
func TestDoctorBesideASidecar(t *testing.T) {
	p := newPatient(t)
	mac, spark := paired(t)
	decode := start(t, "decode", "--json", "--listen", "tcp://127.0.0.1:0", "--keys", mac, "--decoder", p.URL, "--front", "127.0.0.1:0")
	decode.await(t, "it listens", func() bool { return len(decode.out.events("listening")) == 1 })
	socket := filepath.Join(t.TempDir(), "s")
	args := []string{"prefill", "--to", eventsOf[listening](t, decode, "listening")[0].Listen, "--keys", spark, "--engine", engineAt(t, "served"), "--socket", socket,
		"--mem-floor", "-1", "--slots", "8", "--model", "tiny-qwen3=served"}
	sidecar := start(t, append(args, "--json")...)
	// It has the socket and no worker, which the decode host has heard.
	decode.await(t, "it is told", func() bool { return strings.Contains(decode.err.String(), "none of its workers is connected") })
	found := doctor(t, exitFailed, args...)
	if !has(found, "connector", levelFail, "takes no prompts: the engine answers, but none of its workers is connected to "+socket) ||
		!has(found, "match", levelWarn, "so nothing was compared yet") || has(found, "match", levelWarn, "in the log of") {
		t.Errorf("without a worker: %+v", found)
	}
	if found = doctor(t, exitOK, append(args, "--name", "luna")...); !has(found, "connector", levelWarn, "of a prefill host that is called luna") {
		t.Errorf("as another host: %+v", found)
	}
	workersFor(t, socket, engineFacts(t, same))
	sidecar.await(t, "it is ready", func() bool { return len(sidecar.out.events("ready")) == 1 })
	decode.await(t, "it is told", func() bool { return strings.Contains(decode.err.String(), "reads prompts for") })
	found = doctor(t, exitOK, args...)
	if !has(found, "connector", levelOK, "it takes prompts, as the decode host knows") || !has(found, "match", levelWarn, "were not compared by doctor") ||
		!has(found, "match", levelWarn, "or stop pdlink prefill while doctor looks") || !has(found, "match", levelOK, "tiny-qwen3: the decoder has loaded a model of this id") ||
		!has(found, "match", levelOK, "the decode host runs pdlink") {
		t.Errorf("%+v", found)
	}
	if has(found, "match", levelWarn, "has not loaded a model of this id") {
		t.Errorf("all of its ids are known: %+v", found)
	}
	args[len(args)-1] = "else=served"
	if found = doctor(t, exitOK, args...); !has(found, "match", levelWarn, "else: the decoder has not loaded a model of this id") || !has(found, "match", levelWarn, "were not compared by doctor") {
		t.Errorf("of an id that the decoder has not: %+v", found)
	}
	if n := len(sidecar.out.events("waiting")); sidecar.ended() || n > 1 {
		t.Errorf("the sidecar was disturbed: %v", sidecar)
	}
}

// TestDoctorWeights: a file is held against what was noted when it was exported.
func TestDoctorWeights(t *testing.T) {
	weights := filepath.Join(t.TempDir(), "w.safetensors")
	note := strings.TrimSuffix(weights, ".safetensors") + ".json"
	write := func(path, text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(weights, "weights")
	sum := sha256.Sum256([]byte("weights"))
	for _, c := range []struct {
		note  string
		level level
		say   string
	}{
		{"", levelWarn, "is not there"}, {"{}", levelWarn, "has no sha256"},
		{fmt.Sprintf(`{"sha256":%q}`, strings.Repeat("0", 64)), levelFail, "is not the file that was exported"},
		{fmt.Sprintf(`{"sha256":%q}`, hex.EncodeToString(sum[:])), levelOK, "it is the file that was exported"},
	} {
		if c.note != "" {
			write(note, c.note)
		}
		if found := noteFindings(t.Context(), weights); len(found) != 1 || found[0].Level != c.level || !strings.Contains(found[0].Text, c.say) {
			t.Errorf("%q: %+v", c.note, found)
		}
	}
}

// TestDoctorLink: the way over an interface is described.
func TestDoctorLink(t *testing.T) {
	if found := lookLink(t.Context(), linkURL{scheme: schemeTCP, addr: "127.0.0.1:7411"}); !has(found, "", levelOK, "loopback") {
		t.Errorf("%+v", found)
	}
	dir := t.TempDir()
	path, plain := filepath.Join(dir, "s"), filepath.Join(dir, "plain")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		u     linkURL
		level level
		say   string
	}{
		{linkURL{scheme: schemeUnix, addr: path}, levelOK, "over a Unix socket"},
		{linkURL{scheme: schemeUnix, addr: path + "x"}, levelFail, "start `pdlink decode --listen unix://" + path + "x` on this host"},
		{linkURL{scheme: schemeUnix, addr: plain}, levelFail, "is no socket"},
		{linkURL{scheme: schemeUnix, addr: plain + "/s"}, levelFail, "name the socket"},
		{linkURL{scheme: schemeRDMA, addr: "127.0.0.1:7411", device: "none-such"}, levelFail, "`pdlink doctor rdma` says what is missing"},
		{linkURL{scheme: schemeRDMA, addr: "127.0.0.1:7411", device: "none-such"}, levelOK, "loopback"}, // the way of the control connection
		{linkURL{scheme: schemeTCP, addr: "no-such-host.invalid:7411"}, levelFail, "name an address in place of no-such-host.invalid"},
	} {
		if found := lookLink(t.Context(), c.u); !has(found, "", c.level, c.say) {
			t.Errorf("%+v: %+v, want %s %q", c.u, found, c.level, c.say)
		}
	}
}

// TestDoctorPorts: in use by what was looked for, and by something else.
func TestDoctorPorts(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	go func() {
		for {
			c, err := other.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	p := newPatient(t)
	addr := other.Addr().String()
	_, port, _ := strings.Cut(addr, ":")
	found := doctor(t, exitFailed, "decode", "--decoder", p.URL, "--listen", "tcp://127.0.0.1:0", "--front", addr)
	found = append(found, doctor(t, exitFailed, "decode", "--decoder", p.URL, "--listen", "tcp://"+addr, "--front", "127.0.0.1:0")...)
	if !has(found, "listen", levelFail, "sport = :"+port+"'` shows it), or give --listen another port") || !has(found, "front", levelFail, "is in use by something else") {
		t.Errorf("%+v", found)
	}
	decode := start(t, "decode", "--json", "--listen", "tcp://127.0.0.1:0", "--decoder", p.URL, "--front", "127.0.0.1:0")
	decode.await(t, "it listens", func() bool { return len(decode.out.events("listening")) == 1 })
	door := eventsOf[listening](t, decode, "listening")[0]
	found = doctor(t, exitOK, "decode", "--decoder", p.URL, "--listen", door.Listen, "--front", door.Front)
	if !has(found, "listen", levelOK, "in use by a pdlink that runs") || !has(found, "front", levelOK, "in use by a pdlink decode that runs") {
		t.Errorf("%+v", found)
	}
	mac, _ := paired(t) // with keys it does not accept itself, and is known by that
	keyed := start(t, "decode", "--json", "--listen", "tcp://127.0.0.1:0", "--keys", mac, "--discard")
	keyed.await(t, "it listens", func() bool { return len(keyed.out.events("listening")) == 1 })
	found = doctor(t, exitOK, "decode", "--discard", "--keys", mac, "--listen", eventsOf[listening](t, keyed, "listening")[0].Listen)
	if !has(found, "listen", levelOK, "in use by a pdlink that runs, with the key of "+mac) || !has(found, "keys", levelOK, "peers: spark") {
		t.Errorf("%+v", found)
	}
	keyed.await(t, "it says who looked", func() bool {
		return strings.Contains(keyed.err.String(), "has this host's own key: `pdlink doctor` looked")
	})
	if said := keyed.err.String(); strings.Contains(said, "warning") {
		t.Errorf("the doctor was taken for a peer that lacks something: %s", said)
	}
	found = doctor(t, exitOK, "decode", "--discard", "--keys", mac, "--listen", door.Listen)
	if !has(found, "listen", levelWarn, "runs without keys") {
		t.Errorf("%+v", found)
	}
}

// TestDoctorOfACopiedKey: a decode host that has this host's own key is told from one that
// is not paired.
func TestDoctorOfACopiedKey(t *testing.T) {
	mac, _ := paired(t)
	decode := start(t, "decode", "--json", "--listen", "tcp://127.0.0.1:0", "--keys", mac, "--discard")
	decode.await(t, "it listens", func() bool { return len(decode.out.events("listening")) == 1 })
	args := []string{"prefill", "--to", eventsOf[listening](t, decode, "listening")[0].Listen, "--keys", mac, "--engine", "http://127.0.0.1:1", "--socket", t.TempDir() + "/s"}
	found := doctor(t, exitFailed, args...)
	if !has(found, "peer", levelFail, "it is this host's own") || !has(found, "peer", levelFail, "and pair them again") || has(found, "peer", levelFail, "keys show") {
		t.Errorf("%+v", found)
	}
}
