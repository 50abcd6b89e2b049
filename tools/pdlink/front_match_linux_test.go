package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"pdlink/bridge/facts"
)

// engineFacts is what a real engine's worker said of the model of the played decoder,
// with a change.
func engineFacts(t *testing.T, change func(*facts.Facts)) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "bridge", "facts", "testdata", "tiny-qwen3", "vllm-0.32.0.json"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := facts.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	change(f)
	if b, err = f.Encode(); err != nil {
		t.Fatal(err)
	}
	return b
}

// same changes nothing.
func same(*facts.Facts) {}

// tell has a worker say what it has loaded.
func tell(t *testing.T, c *net.UnixConn, doc []byte) {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "facts"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(doc); err != nil {
		t.Fatal(err)
	}
	if err := sendFacts(c, doc, f); err != nil {
		t.Fatal(err)
	}
}

// sendFacts sends a document that lies in a file.
func sendFacts(c *net.UnixConn, doc []byte, f *os.File) error {
	m := make([]byte, 64)
	copy(m, "PDLE\x01\x0f") // version 1, type 15
	binary.LittleEndian.PutUint32(m[16:], uint32(len(doc)))
	m[20] = 1
	sum := sha256.Sum256(doc)
	copy(m[24:], sum[:])
	_, _, err := c.WriteMsgUnix(m, syscall.UnixRights(int(f.Fd())), nil)
	return err
}

// TestAnotherModelIsRefused: a prefill host that has loaded something else, or cannot say
// what, reads nothing, and both ends of the house say why.
func TestAnotherModelIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		doc    []byte // that the worker tells; nil: it is of an older release
		flags  []string
		reason string // of the decline
		log    string // of pdlink decode
	}{
		"another base": {
			engineFacts(t, func(f *facts.Facts) {
				for i := range f.Rope["1"].Sin[0] {
					f.Rope["1"].Sin[0][i] *= 0.5
				}
			}), nil, "spark is refused, its model is another: rope of layer 1: pair 0 turned by 1 radians at position 1 at the decoder", "nothing is read there",
		},
		"other weights": {
			engineFacts(t, func(f *facts.Facts) { f.Tensors["norm"] = facts.Tensor{Shape: []int{128}, Hash: "0011223344556677"} }),
			[]string{"--allow-unknown"}, "tensors norm: [128] ", "nothing is read there",
		},
		"an older worker": {nil, nil, "update pdlink-vllm", "nothing is read there"},
		"an older worker, allowed": {
			nil, []string{"--allow-unknown"}, "engine: prefill: engine refuses the prompt", "unknown at the engine (engine: 1 of its workers do not tell",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(engineKeyEnv, "secret")
			p := play(t)
			mac, spark := paired(t)
			socket := filepath.Join(t.TempDir(), "engine.sock")
			decode := start(t, append([]string{"decode", "--json", "--listen", "tcp://127.0.0.1:0", "--keys", mac, "--decoder", p.decoder.URL,
				"--front", "127.0.0.1:0", "--min-tokens", "100", "--min-tail", "100"}, c.flags...)...)
			decode.await(t, "it listens", func() bool { return len(decode.out.events("listening")) == 1 })
			door := eventsOf[listening](t, decode, "listening")[0]
			prefill := start(t, "prefill", "--json", "--to", door.Listen, "--keys", spark, "--peer", "mac", "--engine", p.engine.URL, "--socket", socket,
				"--model", "tiny-qwen3=served", "--slots", "8", "--name", "spark", "--mem-floor", "-1")
			prefill.await(t, "it waits", func() bool { return len(prefill.out.events("waiting")) > 0 })
			if w := greet(t, socket); c.doc != nil {
				tell(t, w, c.doc)
			}
			decode.await(t, "it is compared", func() bool { return strings.Contains(decode.err.String(), c.log) })
			body := fmt.Sprintf(`{"model":"tiny-qwen3","prompt":%q}`, strings.Repeat("x", 300))
			r, err := http.Post("http://"+door.Front+"/v1/completions", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(r.Body)
			r.Body.Close()
			if v := r.Header.Get("X-PDLink"); err != nil || !bytes.Contains(b, []byte("choices")) || !strings.HasPrefix(v, "declined; ") || !strings.Contains(v, c.reason) {
				t.Errorf("verdict %q, want %q: %s, %v", v, c.reason, b, err)
			}
		})
	}
}
