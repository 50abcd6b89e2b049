//go:build rdmavm

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The programs of this module lie beside the test, put there by -add.
const (
	pdlink = "./pdlink"
	pdperf = "./pdperf"
)

// paired makes the keys of two hosts that know each other and returns their
// directories.
func paired(t *testing.T) (a, b string) {
	t.Helper()
	dir := t.TempDir()
	a, b = filepath.Join(dir, "a"), filepath.Join(dir, "b")
	line := regexp.MustCompile(`pdlink1[a-z0-9]+`)
	tokens := map[string]string{}
	for name, keys := range map[string]string{"a": a, "b": b} {
		out, err := exec.CommandContext(t.Context(), pdlink, "keys", "init", "--dir", keys, "--name", name).CombinedOutput()
		if tokens[name] = line.FindString(string(out)); err != nil || tokens[name] == "" {
			t.Fatalf("keys: %v\n%s", err, out)
		}
	}
	for keys, peer := range map[string]string{a: "b", b: "a"} {
		if out, err := exec.CommandContext(t.Context(), pdlink, "keys", "pair", "--dir", keys, peer, tokens[peer]).CombinedOutput(); err != nil {
			t.Fatalf("pair: %v\n%s", err, out)
		}
	}
	return a, b
}

// listens starts a program that prints, as JSON, where it listens, and returns that.
// It ends with the test.
func listens(t *testing.T, name string, args ...string) string {
	t.Helper()
	// A second signal would end it at once, so the test's context sends none.
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), name, args...)
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	at, ended := make(chan string, 1), make(chan struct{})
	go func() { // to the end: a program whose output nobody reads stands still
		defer close(ended)
		defer close(at)
		said := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var e struct{ Event, Listen string }
			if !said && json.Unmarshal(lines.Bytes(), &e) == nil && e.Listen != "" {
				at <- e.Listen
				said = true
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s %q: %v\n%s", name, args, cmd.ProcessState, log.String())
		}
	})
	url, ok := <-at
	if !ok {
		t.Fatalf("%s %q does not listen", name, args)
	}
	return url
}

// verdict is what replay prints.
type verdict struct {
	Verdict                       string
	State                         string
	Reason                        string
	Blocks, Total                 int
	Compared                      bool
	Identical, Different, Missing int
	Bytes                         uint64
	Reconnects                    int
	Links                         []struct {
		Link   string
		Sealed bool
		Bytes  uint64
	}
}

// reference makes the store that a receiver should have, over memory: of a case it is
// compared with the decoder's own blocks.
func reference(t *testing.T, args ...string) string {
	t.Helper()
	store := t.TempDir()
	v := replayed(t, append(args, "--store", store)...)
	if v.State != "complete" || v.Total == 0 || v.Compared && (v.Identical != v.Total || v.Different+v.Missing != 0) {
		t.Fatalf("reference: %+v", v)
	}
	return store
}

// identical compares a store with the reference.
func identical(t *testing.T, want, got string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), pdlink, "store", "diff", want, got).CombinedOutput(); err != nil {
		t.Errorf("the store differs: %v\n%s", err, out)
	}
}

func replayed(t *testing.T, args ...string) verdict {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, pdlink, append([]string{"replay", "--json"}, args...)...)
	var log strings.Builder
	cmd.Stderr = &log
	out, err := cmd.Output()
	var v verdict
	if jerr := json.Unmarshal(out, &v); err != nil || jerr != nil {
		t.Fatalf("replay %q: %v, %v\n%s%s", args, err, jerr, out, log.String())
	}
	return v
}

// TestVMReplay sends the recorded prefills between two devices, sealed and in clear:
// every block is the decoder's own, bit for bit.
func TestVMReplay(t *testing.T) {
	before := resources(t)
	a, b := paired(t)
	for _, name := range []string{"kv-qwen3", "dsv4-a", "dsv4-b"} {
		want := reference(t, "bundled:"+name)
		for _, encrypt := range []string{"on", "off"} {
			t.Run(name+", sealed "+encrypt, func(t *testing.T) {
				store := t.TempDir()
				url := listens(t, pdlink, "decode", "--json", "--listen", "rdma://"+os.Getenv("RDMA_IP_A")+":0", "--store", store,
					"--keys", a, "--encrypt", encrypt)
				v := replayed(t, "bundled:"+name, "--to", url, "--require", "rdma", "--keys", b, "--encrypt", encrypt)
				if v.State != "complete" || v.Total == 0 || v.Blocks != v.Total {
					t.Errorf("%+v", v)
				}
				identical(t, want, store)
				if len(v.Links) != 1 || v.Links[0].Link != "rdma" || v.Links[0].Bytes != v.Bytes || v.Links[0].Sealed != (encrypt == "on") {
					t.Errorf("links of %+v", v)
				}
				t.Log(v.Verdict)
			})
		}
	}
	if after := resources(t); after != before {
		t.Errorf("resources before:\n%safter:\n%s", before, after)
	}
}

// resources is what the kernel counts of both devices.
func resources(t *testing.T) string {
	t.Helper()
	return shell(t, "rdma resource show $RDMA_A; rdma resource show $RDMA_B")
}

// TestVMRequire: a receiver without RDMA is refused where RDMA is required, and where
// it is not the verdict says what was used.
func TestVMRequire(t *testing.T) {
	a, b := paired(t)
	url := listens(t, pdlink, "decode", "--json", "--listen", "tcp://"+os.Getenv("RDMA_IP_A")+":0", "--store", t.TempDir(), "--keys", a)
	over := strings.Replace(url, "tcp://", "rdma://", 1)
	out, err := exec.CommandContext(t.Context(), pdlink, "replay", "bundled:kv-qwen3", "--to", over, "--require", "rdma", "--keys", b, "--retry", "0").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "rdma") {
		t.Errorf("a receiver without RDMA: %v\n%s", err, out)
	}
	t.Logf("%s", out)
	v := replayed(t, "bundled:kv-qwen3", "--to", over, "--to", url, "--keys", b)
	if v.State != "complete" || len(v.Links) != 1 || v.Links[0].Link != "tcp" {
		t.Errorf("%+v", v)
	}
	t.Log(v.Verdict)
}
