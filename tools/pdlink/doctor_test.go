package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// patient0 is a decoder with a plug-in whose recorded answers a test changes.
type patient0 struct {
	*httptest.Server
	store  string
	info   map[string]any // the answer to info with a model; without one the same, less "model"
	key    string         // that it wants; "": none
	status map[string]int // of paths that are answered otherwise than with 200
	body   map[string]string
	date   string
	loads  int
}

// newPatient returns a decoder in good health.
func newPatient(t *testing.T) *patient0 {
	t.Helper()
	p := &patient0{store: filepath.Join(t.TempDir(), "store"), status: map[string]int{}, body: map[string]string{}}
	if err := os.MkdirAll(filepath.Join(p.store, "0"), 0o755); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join("..", "..", "bridge", "omlx", "plugin", "testdata", "omlx-0.5.3", "info.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &p.info); err != nil {
		t.Fatal(err)
	}
	p.at("model", "store")["path"] = p.store
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

// at is an object of the recorded answer.
func (p *patient0) at(path ...string) map[string]any {
	x := p.info
	for _, name := range path {
		x = x[name].(map[string]any)
	}
	return x
}

// ServeHTTP implements http.Handler.
func (p *patient0) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if r.URL.Query().Has("model") {
		path += "?model"
	}
	if p.date != "" {
		w.Header().Set("Date", p.date)
	}
	status, body := http.StatusOK, any(map[string]any{"data": []any{}})
	switch {
	case p.key != "" && r.Header.Get("Authorization") != "Bearer "+p.key:
		status = http.StatusUnauthorized
	case p.status[path] != 0:
		status, body = p.status[path], json.RawMessage(p.body[path])
	case path == "/pdlink/v1/info":
		less := map[string]any{}
		for k, v := range p.info {
			if k != "model" {
				less[k] = v
			}
		}
		body = less
	case path == "/pdlink/v1/info?model" && r.URL.Query().Get("model") != "tiny-qwen3":
		status, body = http.StatusBadRequest, json.RawMessage(`{"error":{"code":"bad-request","message":"it is not loaded"}}`)
	case path == "/pdlink/v1/info?model":
		body = p.info
	case path == "/pdlink/v1/plan":
		p.loads++
	}
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(body)
}

// doctor runs a doctor with --json and returns its findings.
func doctor(t *testing.T, want int, args ...string) (found []finding) {
	t.Helper()
	status, out, errOut := cli(t, append(append([]string{"doctor"}, args...), "--json")...)
	if status != want {
		t.Errorf("status %d, want %d: %s%s", status, want, out, errOut)
	}
	var sum doctorSummary
	for line := range strings.Lines(out) {
		var f finding
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if f.Event == "summary" {
			if err := json.Unmarshal([]byte(line), &sum); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if f.Event != "check" || f.Check == "" || f.Text == "" || (f.Cure == "") != (f.Level == levelOK) {
			t.Errorf("not a finding with its cure: %+v", f)
		}
		found = append(found, f)
	}
	counts := map[level]int{}
	for _, f := range found {
		counts[f.Level]++
	}
	if sum.OK != counts[levelOK] || sum.Warn != counts[levelWarn] || sum.Fail != counts[levelFail] || (sum.Fail > 0) != (want == exitFailed) {
		t.Errorf("summary %+v of %v", sum, counts)
	}
	return found
}

// has reports a finding of a check with a text.
func has(found []finding, check string, l level, text string) bool {
	return slices.ContainsFunc(found, func(f finding) bool {
		return f.Check == check && f.Level == l && strings.Contains(f.Text+" "+f.Cure, text)
	})
}

// TestDoctorDecode: a host in good health, and each ailment with its cure.
func TestDoctorDecode(t *testing.T) {
	const decoder, info, model = "/v1/models", "/pdlink/v1/info", "/pdlink/v1/info?model"
	refuse := func(p *patient0, code string) {
		p.status[model], p.body[model] = http.StatusConflict, fmt.Sprintf(`{"error":{"code":%q,"message":"the decoder quantises its cache"}}`, code)
	}
	for name, c := range map[string]struct {
		ail    func(t *testing.T, p *patient0)
		args   []string
		status int
		check  string
		level  level
		say    string
	}{
		"well":        {nil, nil, exitOK, "canary", levelOK, "byte for byte"},
		"well, facts": {nil, nil, exitOK, "facts", levelOK, "3 layers of kv, 2 key/value heads of 64, BF16"},
		"well, store": {nil, nil, exitOK, "store", levelOK, "can be written"},
		"gone":        {func(_ *testing.T, p *patient0) { p.Close() }, nil, exitFailed, "decoder", levelFail, "start it, or name its address with --decoder"},
		"no key":      {func(_ *testing.T, p *patient0) { p.key = "sesam" }, nil, exitFailed, "decoder", levelFail, "set $PDLINK_DECODER_KEY"},
		"wrong key": {func(t *testing.T, p *patient0) { t.Setenv(decoderKeyEnv, "open"); p.key = "sesam" }, nil, exitFailed, "decoder", levelFail,
			"refuses the API key"},
		"the key":       {func(t *testing.T, p *patient0) { t.Setenv(decoderKeyEnv, "sesam"); p.key = "sesam" }, nil, exitOK, "decoder", levelOK, "answers"},
		"something":     {func(_ *testing.T, p *patient0) { p.status[decoder] = 500 }, nil, exitFailed, "decoder", levelFail, "answers 500"},
		"no plug-in":    {func(_ *testing.T, p *patient0) { p.status[info] = 404 }, nil, exitFailed, "plug-in", levelFail, "pip install ./bridge/omlx/plugin"},
		"other plug-in": {func(_ *testing.T, p *patient0) { p.info["api"] = 2 }, nil, exitFailed, "plug-in", levelFail, "speaks version 2"},
		"a path has moved": {func(_ *testing.T, p *patient0) { p.at("plans")["/v1/responses"] = "find the handler" }, nil, exitOK, "plug-in", levelWarn,
			"/v1/responses: find the handler"},
		"all have": {func(_ *testing.T, p *patient0) {
			for path := range p.at("plans") {
				p.at("plans")[path] = "moved"
			}
		}, nil, exitFailed, "plug-in", levelFail, "not bridged"},
		"nothing loaded": {func(_ *testing.T, p *patient0) { p.info["models"].([]any)[0].(map[string]any)["loaded"] = false }, nil, exitOK, "models", levelWarn, "--load ID"},
		"to be loaded":   {nil, []string{"--load", "tiny-qwen3"}, exitOK, "models", levelOK, "tiny-qwen3 is loaded: blocks of 256 tokens"},
		"cannot be loaded": {func(_ *testing.T, p *patient0) {
			p.status["/pdlink/v1/plan"], p.body["/pdlink/v1/plan"] = 507, `{"error":{"code":"decoder","message":"not enough memory"}}`
		}, []string{"--load", "x"}, exitFailed, "models", levelFail, "x cannot be loaded: not enough memory"},
		"cannot adopt":     {func(_ *testing.T, p *patient0) { refuse(p, "unsupported") }, nil, exitFailed, "models", levelFail, "--paged-ssd-cache-dir"},
		"has moved":        {func(_ *testing.T, p *patient0) { refuse(p, "moved") }, nil, exitFailed, "models", levelFail, "update pdlink-omlx"},
		"some new refusal": {func(_ *testing.T, p *patient0) { refuse(p, "new") }, nil, exitFailed, "models", levelFail, "see the decoder's log"},
		"foreign blocks": {func(_ *testing.T, p *patient0) { p.at("model", "native")["data_bytes"] = 7 }, nil, exitFailed, "canary", levelFail,
			"nothing is bridged for it"},
		"does not tell": {func(_ *testing.T, p *patient0) { delete(p.at("model"), "facts") }, nil, exitOK, "facts", levelWarn, "its plug-in does not tell"},
		"tells less": {func(_ *testing.T, p *patient0) {
			p.at("model", "facts")["unknown"] = map[string]any{"rope": "has no rope"}
		}, nil, exitOK, "facts", levelWarn, "rope: has no rope"},
		"store elsewhere": {func(_ *testing.T, p *patient0) { p.at("model", "store")["path"] = filepath.Join(p.store, "no") }, nil, exitFailed, "store", levelFail,
			"on the decoder's host"},
		"a file":        {func(_ *testing.T, p *patient0) { os.RemoveAll(p.store); os.WriteFile(p.store, nil, 0o600) }, nil, exitFailed, "store", levelFail, "is no directory"},
		"small store":   {func(_ *testing.T, p *patient0) { p.at("model", "store")["limit"] = 1 << 20 }, nil, exitFailed, "store", levelFail, "ssd_cache_max_size"},
		"another store": {nil, []string{"--store", "."}, exitFailed, "store", levelFail, "is not the decoder's store, which is"},
		"another clock": {func(_ *testing.T, p *patient0) { p.date = time.Now().Add(time.Hour).UTC().Format(http.TimeFormat) }, nil, exitOK, "clock", levelWarn, "is it another host?"},
		"exposed":       {nil, []string{"--listen", "tcp://:0"}, exitFailed, "keys", levelFail, "pdlink keys init"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PDLINK_KEYS", t.TempDir())
			p := newPatient(t)
			if c.ail != nil {
				c.ail(t, p)
			}
			args := append([]string{"decode", "--decoder", p.URL, "--listen", "tcp://127.0.0.1:0", "--front", "127.0.0.1:0"}, c.args...)
			if found := doctor(t, c.status, args...); !has(found, c.check, c.level, c.say) {
				t.Errorf("%+v, want %s %s %q", found, c.check, c.level, c.say)
			}
			if entries, err := os.ReadDir(p.store); err == nil && len(entries) != 1 {
				t.Errorf("it left something in the store: %v", entries)
			}
		})
	}
}

// TestDoctorWithoutADecoder: without a decoder it looks at what there is.
func TestDoctorWithoutADecoder(t *testing.T) {
	store := t.TempDir()
	found := doctor(t, exitOK, "decode", "--store", store, "--listen", "tcp://127.0.0.1:0")
	if !has(found, "store", levelOK, store+" can be written") || slices.ContainsFunc(found, func(f finding) bool { return f.Check == "decoder" || f.Check == "models" }) {
		t.Errorf("%+v", found)
	}
	found = doctor(t, exitOK, "decode", "--store", filepath.Join(store, "new"), "--listen", "tcp://127.0.0.1:0")
	if !has(found, "store", levelWarn, "does not exist") {
		t.Errorf("%+v", found)
	}
	if entries, err := os.ReadDir(store); err != nil || len(entries) != 0 {
		t.Errorf("it left %v, %v", entries, err)
	}
}

// TestDoctorReadsTheCommandsSettings: its config file and variables are the command's.
func TestDoctorReadsTheCommandsSettings(t *testing.T) {
	p := newPatient(t)
	config := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "[decode]\ndecoder = %q\nlisten = \"tcp://127.0.0.1:0\"\n", p.URL), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PDLINK_DECODE_FRONT", "127.0.0.1:0")
	found := doctor(t, exitOK, "decode", "--config", config)
	if !has(found, "decoder", levelOK, p.URL+" answers") || !has(found, "front", levelOK, "127.0.0.1:0 is free") {
		t.Errorf("%+v", found)
	}
	if err := os.WriteFile(config, []byte("[decode]\nlisen = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, _, errOut := cli(t, "doctor", "decode", "--config", config, "--discard"); status != exitUsage || !strings.Contains(errOut, "lisen") {
		t.Errorf("status %d: %s", status, errOut)
	}
}

// TestDoctorIsBounded: a check that does not come to an end is said to have not, and the
// others run.
func TestDoctorIsBounded(t *testing.T) {
	never := make(chan struct{})
	defer close(never)
	var b strings.Builder
	type nobody struct{}
	x := []check[nobody]{
		{"stuck", 10 * time.Millisecond, func(*nobody, context.Context) []finding { <-never; return nil }},
		{"slow", 10 * time.Millisecond, func(_ *nobody, ctx context.Context) []finding {
			<-ctx.Done()
			return []finding{doubt("it was cut", "wait")}
		}},
		{"fast", 0, func(*nobody, context.Context) []finding { return []finding{good("it is")} }},
		{"none", 0, func(*nobody, context.Context) []finding { return nil }},
	}
	std := newStreams(&b, &b)
	err := examine(t.Context(), std, false, &nobody{}, x)
	want := "FAIL  stuck      not done after 10ms. Cure: look whether the disk or the network that it waits for answers\n" +
		"warn  slow       it was cut. Cure: wait\nok    fast       it is\n1 ok, 1 warning, 1 failed\n"
	if !quiet(err) || b.String() != want {
		t.Errorf("%v: %q, want %q", err, b.String(), want)
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	if err := examine(stopped, std, false, &nobody{}, x[1:2]); err == nil {
		t.Error("an interrupt is not told")
	}
}

// TestDoctorForgetsLateWords: what a check that was left behind learns afterwards reaches
// neither the checks behind it nor who reads the doctor in the end.
func TestDoctorForgetsLateWords(t *testing.T) {
	type patient struct{ early, late, seen int }
	release, wrote := make(chan struct{}), make(chan struct{})
	checks := []check[patient]{
		{"first", 0, func(p *patient, _ context.Context) []finding { p.early = 1; return []finding{good("it is")} }},
		{"stuck", time.Millisecond, func(p *patient, _ context.Context) []finding {
			<-release
			p.early, p.late = 2, 2
			close(wrote)
			return nil
		}},
		{"last", 0, func(p *patient, _ context.Context) []finding {
			close(release) // it writes while this one reads
			p.seen = p.early + p.late
			<-wrote
			return []finding{good("saw %d", p.early+p.late)}
		}},
	}
	var p patient
	var b strings.Builder
	err := examine(t.Context(), newStreams(&b, &b), false, &p, checks)
	if !quiet(err) || p != (patient{early: 1, seen: 1}) || !strings.Contains(b.String(), "last       saw 1") {
		t.Errorf("%v, %+v: %s", err, p, b.String())
	}
}

// TestDoctorUsage: what it does not understand.
func TestDoctorUsage(t *testing.T) {
	for _, args := range [][]string{{"decode"}, {"prefill"}, {"decod"}, {"decode", "--decoder", "x"}, {"prefill", "--to", "tcp://127.0.0.1:1", "--model", "x"}} {
		if status, _, errOut := cli(t, append([]string{"doctor"}, args...)...); status != exitUsage || errOut == "" {
			t.Errorf("%v: status %d: %s", args, status, errOut)
		}
	}
	if status, out, _ := cli(t, "doctor"); status != exitOK || !strings.Contains(out, "pdlink doctor decode") {
		t.Errorf("status %d: %s", status, out)
	}
}

// TestDoctorWatch: what would end the command at its start is found.
func TestDoctorWatch(t *testing.T) {
	for _, c := range []struct {
		status int
		args   []string
		level  level
		say    string
	}{
		{exitOK, []string{"--metrics", "0"}, levelOK, "--metrics 0 is free"},
		{exitFailed, []string{"--metrics", "0.0.0.0:0"}, levelFail, "other hosts can reach this address"},
		{exitOK, []string{"--metrics", "0.0.0.0:0", "--metrics-open"}, levelWarn, "other hosts can reach this address"},
		{exitFailed, []string{"--metrics", "0", "--metrics-token", "/no/such/token"}, levelFail, "--metrics-token"},
		{exitFailed, []string{"--trace", "/no/such/t.json"}, levelFail, "--trace"},
		{exitOK, []string{"--trace", t.TempDir() + "/t.json"}, levelOK, "the timeline can be written"},
	} {
		if found := doctor(t, c.status, append([]string{"decode", "--discard", "--listen", "tcp://127.0.0.1:0"}, c.args...)...); !has(found, "watch", c.level, c.say) {
			t.Errorf("%q: %+v", c.args, found)
		}
	}
}

// TestDoctorOfSeveralWays: what one way lacks fails nothing where another one leads there,
// and is said once where none does.
func TestDoctorOfSeveralWays(t *testing.T) {
	none := linkURL{scheme: schemeRDMA, addr: "127.0.0.1:1", device: "none-such"}
	d := &prefillDoctor{f: &prefillFlags{ways: []linkURL{none, {scheme: schemeTCP, addr: "127.0.0.1:1"}}}, keysOK: true}
	if found := d.lookLinks(t.Context()); has(found, "", levelFail, "") || !has(found, "", levelWarn, "rdma://127.0.0.1:1") {
		t.Errorf("with another way: %+v", found)
	}
	d.f.ways = d.f.ways[:1]
	if found := d.lookLinks(t.Context()); !has(found, "", levelFail, "rdma://127.0.0.1:1") {
		t.Errorf("alone: %+v", found)
	}
	if found := d.lookPeers(t.Context()); len(found) != 0 {
		t.Errorf("said twice: %+v", found)
	}
}

// TestDoctorSaysWhereNoConfigFileIs: as the commands that it looks at.
func TestDoctorSaysWhereNoConfigFileIs(t *testing.T) {
	t.Setenv(configEnv, "")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", "")
	for _, command := range []string{"decode", "prefill"} {
		if status, _, errOut := cli(t, "doctor", command); status != exitUsage || !strings.Contains(errOut, "there is no config file at ") {
			t.Errorf("%s: status %d: %s", command, status, errOut)
		}
	}
}
