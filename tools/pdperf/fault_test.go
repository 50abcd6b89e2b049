package main

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// proxied starts a receiving end and a fault proxy in front of it.
func proxied(t *testing.T, faults ...string) (proxy, server *background) {
	t.Helper()
	server = start(t, "serve", "--listen", "tcp://127.0.0.1:0")
	proxy = start(t, append([]string{"fault", "--listen", "tcp://127.0.0.1:0", "--to", server.url}, faults...)...)
	return proxy, server
}

// stopBoth ends both with what is expected of them.
func stopBoth(t *testing.T, proxy, server *background) (total map[string]any) {
	t.Helper()
	for _, b := range []*background{proxy, server} {
		if status := b.stop(); status != exitOK {
			t.Errorf("status %d: %s", status, b.err.String())
		}
	}
	all := proxy.events()
	return all[len(all)-1]
}

func TestDamageIsRepairedAndCounted(t *testing.T) {
	// A flip may also hit the few bytes that are not payload, which ends the
	// connection: one run in hundreds, and its result has to say so.
	for seed := range 5 {
		proxy, server := proxied(t, "--corrupt-every", "20MB", "--seed", strconv.Itoa(seed))
		args := []string{"run", "--to", proxy.url, "--size", "3MB", "--time", "300ms", "--warmup", "0", "--json"}
		status, out, errOut := cli(t, args...)
		total := stopBoth(t, proxy, server)
		if status == exitFailed && errOut != "" {
			continue
		}
		if status != exitOK {
			t.Fatalf("status %d: %s%s", status, out, errOut)
		}
		r := parsed(t, out)
		sound(t, r)
		if r.Bad == 0 || r.Resent == 0 || r.Verified < r.Bytes || total["corruptions"].(float64) == 0 {
			t.Errorf("%d bad pieces, %d bytes sent again, %d of %d verified; %v", r.Bad, r.Resent, r.Verified, r.Bytes, total)
		}
		if _, text, _ := cli(t, quick("run", "--to", proxy.url)...); strings.Contains(text, "goodput") {
			t.Error("a run over a proxy that has ended")
		}
		return
	}
	t.Error("no run came to its end")
}

func TestCutsEndARun(t *testing.T) {
	for _, how := range [][]string{nil, {"--reset"}, {"--half-close"}} {
		proxy, server := proxied(t, append([]string{"--cut-after", "30MB"}, how...)...)
		begin := time.Now()
		status, out, errOut := cli(t, "run", "--to", proxy.url, "--size", "3MB", "--time", "20s", "--warmup", "0", "--json")
		if status != exitFailed || out != "" || errOut == "" {
			t.Errorf("%v: status %d: %s%s", how, status, out, errOut)
		}
		if took := time.Since(begin); took > 15*time.Second {
			t.Errorf("%v: noticed after %v", how, took)
		}
		if total := stopBoth(t, proxy, server); total["event"] != "total" || total["cuts"].(float64) != 1 {
			t.Errorf("%v: %v", how, total)
		}
		kind := "cut"
		if len(how) > 0 && how[0] == "--half-close" {
			kind = "half-cut"
		}
		if proxy.count(kind) != 1 || proxy.count("open") != 2 || proxy.count("end") != 2 {
			t.Errorf("%v: events %s", how, proxy.out.String())
		}
	}
}

func TestDelayAndRateShowInTheResult(t *testing.T) {
	const delay, rate = 30, 40e6
	proxy, server := proxied(t, "--delay", "30ms", "--rate", "40MB")
	r := measured(t, "run", "--to", proxy.url, "--size", "1MB", "--frame", "256KiB", "--time", "300ms", "--warmup", "0")
	sound(t, r)
	if r.BlockMs.P50 < 2*delay {
		t.Errorf("blocks took %+v ms over a way of %d ms and back", r.BlockMs, delay)
	}
	if r.Goodput > rate/1e9 {
		t.Errorf("%v GB/s through %v", r.Goodput, rate/1e9)
	}
	stopBoth(t, proxy, server)
}

func TestFaultText(t *testing.T) {
	server := start(t, "serve", "--listen", "tcp://127.0.0.1:0")
	b := startText(t, "fault", "--listen", "tcp://127.0.0.1:0", "--to", server.url, "--cut-after", "1MB")
	b.until("listening on ")
	_, url, _ := strings.Cut(strings.TrimSpace(b.out.String()), "listening on ")
	if status, out, _ := cli(t, "run", "--to", url, "--size", "1MB", "--time", "20s", "--warmup", "0"); status != exitFailed {
		t.Errorf("status %d: %s", status, out)
	}
	if status := b.stop(); status != exitOK {
		t.Errorf("status %d: %s", status, b.err.String())
	}
	for _, text := range []string{"open connection 1", "cut at byte 1000000", "on its way to the target", "forwarded 2 connections (0 refused)", "1 cuts"} {
		if !strings.Contains(b.out.String(), text) {
			t.Errorf("no %q in\n%s", text, b.out.String())
		}
	}
}
