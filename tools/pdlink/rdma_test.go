package main

import (
	"strings"
	"testing"

	"pdlink/bridge"
)

// noDevice is a device that no host has, so that these tests end alike on all hosts.
const noDevice = "?device=no-such-device"

func TestRDMAURLs(t *testing.T) {
	for _, c := range []struct {
		text string
		want linkURL
		says string
	}{
		{text: "rdma://10.0.0.5:7411", want: linkURL{scheme: "rdma", addr: "10.0.0.5:7411"}},
		{text: "RDMA://h:1/?device=mlx5_0:2&fallback=no", want: linkURL{scheme: "rdma", addr: "h:1", device: "mlx5_0:2", only: true}},
		{text: "rdma://h:1?fallback=yes", want: linkURL{scheme: "rdma", addr: "h:1", falls: true}},
		{text: "rdma://h", says: "want rdma://host:port"},
		{text: "rdma://h:1?gid=3", says: "want device=NAME"},
		{text: "rdma://h:1?device=", says: "want device=NAME"},
		{text: "rdma://h:1?fallback=maybe", says: "want fallback=yes"},
		{text: "rdma://h:1?device=a&device=b", says: "is there 2 times"},
		{text: "rdma://h:1?%zz", says: "invalid URL escape"},
	} {
		got, err := parseLink(c.text)
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: %v, want an error that says %q", c.text, err, c.says)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v", c.text, got, err)
		}
		if again, err := parseLink(got.String()); err != nil || again != got {
			t.Errorf("%s is written %s, which reads %+v, %v", c.text, got, again, err)
		}
	}
}

// TestParametersAreForOneEnd: every command reads rdma URLs alike, and the end that dials
// refuses what would have no effect there. What a listener says is for the other end to
// dial.
func TestParametersAreForOneEnd(t *testing.T) {
	for _, args := range [][]string{
		{"replay", "bundled:kv-qwen3", "--to"},
		{"prefill", "--socket", t.TempDir() + "/s", "--to"},
		{"decode", "--store", t.TempDir(), "--listen"},
	} {
		for query, says := range map[string]string{
			"gid=3":               "device=NAME[:PORT]",
			"device=a&device=b":   "is there 2 times",
			"fallback=no":         "is for the end that listens",
			"fallback=yes":        "is for the end that listens",
			"device=no-such:zero": "device=NAME:PORT",
		} {
			if args[0] == "decode" && strings.HasPrefix(query, "fallback") {
				continue
			}
			status, out, errOut := cli(t, append(args, "rdma://127.0.0.1:1?"+query)...)
			if status != exitUsage || out != "" || !strings.Contains(errOut, says) {
				t.Errorf("%v with %s: status %d, said %q and %q", args, query, status, out, errOut)
			}
		}
	}
	u, err := parseLink("rdma://0.0.0.0:0?device=mlx5_0&fallback=no")
	if err != nil {
		t.Fatal(err)
	}
	if said := u.at("10.0.0.5:7411"); said.String() != "rdma://10.0.0.5:7411" || said.target("to") != nil {
		t.Errorf("the listener says %s", said)
	}
}

// TestWithoutRDMA: a host that cannot do RDMA says why in one line, and fails.
func TestWithoutRDMA(t *testing.T) {
	url := "rdma://127.0.0.1:0" + noDevice
	for _, args := range [][]string{
		{"decode", "--listen", url, "--store", t.TempDir()},
		{"replay", "bundled:kv-qwen3", "--to", "rdma://127.0.0.1:1" + noDevice},
		{"replay", "bundled:kv-qwen3", "--to", "rdma://127.0.0.1:1" + noDevice, "--to", "tcp://127.0.0.1:1", "--require", "rdma"},
	} {
		status, out, errOut := cli(t, args...)
		var said []string
		for _, line := range strings.Split(strings.TrimSpace(errOut), "\n") {
			if strings.Contains(line, "link unavailable") {
				said = append(said, line)
			}
		}
		if status == exitOK || out != "" || len(said) == 0 || strings.Count(errOut, "link unavailable") > 2 {
			t.Errorf("%v: status %d, said %q and %q", args, status, out, errOut)
		}
	}
}

// TestFallbackFromRDMA: where another way is allowed it is taken, and the result says
// why.
func TestFallbackFromRDMA(t *testing.T) {
	r := startReceiver(t, t.TempDir())
	res := replayJSON(t, exitOK, "bundled:kv-qwen3", "--to", "rdma://"+r.addr+noDevice, "--to", "tcp://"+r.addr)
	if res.State != bridge.Complete || len(res.Links) != 1 || res.Links[0].Link != "tcp" || len(res.Routes) != 2 {
		t.Fatalf("%+v", res)
	}
	if v := res.Routes[0]; v.Route != "rdma://"+r.addr+noDevice || v.Connects != 0 || !strings.Contains(v.Reason, "link unavailable") {
		t.Errorf("routes %+v", res.Routes)
	}
	status, out, errOut := cli(t, "replay", "bundled:kv-qwen3", "--to", "rdma://"+r.addr+noDevice, "--to", "tcp://"+r.addr)
	if status != exitOK || !strings.Contains(out, "\n  not over rdma://"+r.addr+noDevice+": link unavailable: ") || !strings.Contains(errOut, ": "+rdmaHint+"\n") {
		t.Errorf("status %d, said %q and %q", status, out, errOut)
	}
}

// TestInsteadOfRDMA: what is advised is not there already, nor forbidden by --require.
func TestInsteadOfRDMA(t *testing.T) {
	const none, plain = "rdma://127.0.0.1:1" + noDevice, "tcp://127.0.0.1:1"
	_, _, errOut := cli(t, "replay", "bundled:kv-qwen3", "--to", none, "--to", plain, "--require", "rdma")
	if !strings.Contains(errOut, rdmaHint+"; leave --require rdma out") || strings.Contains(errOut, withoutRDMA) {
		t.Errorf("said %q", errOut)
	}
	for _, c := range []struct {
		f    *replayFlags
		want string
	}{
		{&replayFlags{to: []string{none}}, "without RDMA use tcp://host:port"},
		{&replayFlags{to: []string{none, plain}}, ""},
		{&replayFlags{to: []string{none, plain}, require: "rdma"}, "leave --require rdma out, and the other ways are taken"},
	} {
		if err := c.f.parseRoutes(); err != nil || c.f.instead() != c.want {
			t.Errorf("%q with --require %q: %q, %v", c.f.to, c.f.require, c.f.instead(), err)
		}
	}
}

// TestHelpNamesRDMA: where links are named, and where to look at a host.
func TestHelpNamesRDMA(t *testing.T) {
	for want, args := range map[string][]string{
		"pdlink doctor rdma ": {"--help"}, "pdlink doctor prefill ": {"--help"}, "rdma://host:port, unix://path": {"replay", "--help"},
	} {
		if _, out, _ := cli(t, args...); !strings.Contains(out, want) {
			t.Errorf("%q: no %q in %s", args, want, out)
		}
	}
}
