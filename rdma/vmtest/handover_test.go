//go:build rdmavm

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// golden are the cases with a decoder's own blocks that pdlink has built in: all that
// it names.
func golden(t *testing.T) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), pdlink, "replay", "bundled:none-of-that-name", "--discard").CombinedOutput()
	cases := regexp.MustCompile(`bundled:[a-z0-9-]+`).FindAllString(string(out), -1)
	if err == nil || len(cases) < 4 { // the first is the one that there is none of
		t.Fatalf("%v: %s", err, out)
	}
	return cases[1:]
}

// TestVMHandover hands golden cases over by memory, TCP and RDMA, those that take little
// to compute. All blocks are the decoder's own; the figures are printed. The machine
// emulates its processors, so figures say how the links compare there, and not more.
func TestVMHandover(t *testing.T) {
	if all := strings.Join(golden(t), " "); all != "bundled:dsv4-a bundled:dsv4-b bundled:kv-qwen3" {
		t.Errorf("the cases are %s: TestVMReplay has to send them all", all)
	}
	cases := []string{"bundled:dsv4-a", "bundled:kv-qwen3"}
	before := resources(t)
	args := append([]string{"handover", "--at", os.Getenv("RDMA_IP_A"), "--pdlink", pdlink, "--runs", "1", "--json"}, cases...)
	out, err := exec.CommandContext(t.Context(), pdperf, args...).Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	links := map[string]int{}
	for line := range strings.Lines(string(out)) {
		var r struct {
			Case, Link     string
			Identical      bool
			Tokens, Blocks int
			Bytes          uint64
			Seconds        float64
			PerToken       float64  `json:"ms_per_token"`
			Over           *float64 `json:"ms_per_token_over_mem"`
		}
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if links[r.Link]++; !r.Identical || r.Blocks == 0 || r.Bytes == 0 || r.PerToken <= 0 || r.Over == nil {
			t.Errorf("%s", line)
			continue
		}
		t.Logf("%-18s %-5s %5d tokens, %d blocks, %7.3f MB, %.4f s, %.4f ms per token, %+.4f over mem", r.Case, r.Link, r.Tokens, r.Blocks, float64(r.Bytes)/1e6, r.Seconds, r.PerToken, *r.Over)
	}
	if n := len(cases); links["mem"] != n || links["tcp"] != n || links["rdma"] != n {
		t.Errorf("handed over %v, want each of %d cases by each link", links, n)
	}
	if after := resources(t); after != before {
		t.Errorf("resources before:\n%safter:\n%s", before, after)
	}
}

// counted is what the system's own tool says of a counter of a port.
func counted(t *testing.T, device, name string) uint64 {
	t.Helper()
	out := shell(t, "rdma statistic show link "+device+"/1")
	m := regexp.MustCompile(`\b` + name + ` (\d+)`).FindStringSubmatch(out)
	if len(m) < 2 {
		t.Fatalf("no %s in %s", name, out)
	}
	n, err := strconv.ParseUint(m[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// ports is the part of a result that says what ports counted.
type ports []struct {
	Port   string
	Counts map[string]uint64
}

// TestVMCounters: a verdict says what the ports of both ends counted while the transfer
// went on, as the system's own tool does; one over TCP says nothing.
func TestVMCounters(t *testing.T) {
	a, b := paired(t)
	for _, scheme := range []string{"rdma", "tcp"} {
		url := listens(t, pdlink, "decode", "--json", "--listen", scheme+"://"+os.Getenv("RDMA_IP_A")+":0", "--store", t.TempDir(), "--keys", a)
		A, B := os.Getenv("RDMA_A"), os.Getenv("RDMA_B")
		before := [2]uint64{counted(t, A, "rcvd_pkts"), counted(t, B, "sent_pkts")}
		out, err := exec.CommandContext(t.Context(), pdlink, "replay", "bundled:kv-qwen3", "--to", url, "--keys", b, "--json").Output()
		var v struct {
			State     string
			Bytes     uint64
			Ports     ports
			SentPorts ports `json:"sent_ports"`
		}
		if jerr := json.Unmarshal(out, &v); err != nil || jerr != nil || v.State != "complete" {
			t.Fatalf("%v, %v: %s", err, jerr, out)
		}
		moved := [2]uint64{counted(t, A, "rcvd_pkts") - before[0], counted(t, B, "sent_pkts") - before[1]}
		if scheme == "tcp" {
			if v.Ports != nil || v.SentPorts != nil {
				t.Errorf("over TCP: %s", out)
			}
			continue
		}
		least := v.Bytes / 4096 // packets, at the largest MTU
		if len(v.Ports) != 1 || v.Ports[0].Port != A+":1" || len(v.SentPorts) != 1 || v.SentPorts[0].Port != B+":1" {
			t.Fatalf("%s", out)
		}
		for i, got := range []uint64{v.Ports[0].Counts["rcvd_pkts"], v.SentPorts[0].Counts["sent_pkts"]} {
			if got < least || got > moved[i] {
				t.Errorf("end %d: the verdict says %d packets, the system %d, and %d are needed", i, got, moved[i], least)
			}
		}
		for _, p := range append(v.Ports, v.SentPorts...) {
			for name, n := range p.Counts {
				if n == 0 {
					t.Errorf("%s: %s is zero", p.Port, name)
				}
			}
		}
		t.Logf("receiver %v, sender %v", v.Ports, v.SentPorts)
	}
}

// TestVMCountersShowLoss: what went wrong on the wire is in the verdict and on its line
// for people, and in pdperf's result.
func TestVMCountersShowLoss(t *testing.T) {
	loaded(t)
	a, b := paired(t)
	net := os.Getenv("RDMA_NET_B")
	shell(t, "tc qdisc add dev "+net+" root netem loss 3%")
	defer shell(t, "tc qdisc del dev "+net+" root")
	url := listens(t, pdperf, "serve", "--json", "--listen", "rdma://"+os.Getenv("RDMA_IP_A")+":0", "--keys", a, "--encrypt", "off")
	out, err := exec.CommandContext(t.Context(), pdperf, "run", "--json", "--to", url, "--keys", b, "--encrypt", "off", "--size", "1MiB", "--time", "3s", "--warmup", "0s").Output()
	type end struct {
		Ports []struct {
			Port   string
			Counts []struct {
				Name string
				By   uint64
			}
		}
	}
	var r struct {
		OK               bool
		Sender, Receiver end
	}
	if jerr := json.Unmarshal(out, &r); err != nil || jerr != nil || !r.OK {
		t.Fatalf("%v, %v: %s", err, jerr, out)
	}
	text := fmt.Sprint(r.Sender.Ports, r.Receiver.Ports)
	if !regexp.MustCompile(`out_of_seq_request|duplicate_request|retry|sequence|timeout`).MatchString(text) || !strings.Contains(text, "sent_pkts") {
		t.Errorf("3 %% of packets were lost, and the ports counted %s", text)
	}
	t.Log(text)
	url = listens(t, pdlink, "decode", "--json", "--listen", "rdma://"+os.Getenv("RDMA_IP_A")+":0", "--store", t.TempDir(), "--keys", a)
	said, err := exec.CommandContext(t.Context(), pdlink, "replay", "bundled:kv-qwen3", "--to", url, "--keys", b).CombinedOutput()
	if err != nil || strings.Count(string(said), "ports counted ") != 2 {
		t.Errorf("%v: %s", err, said)
	}
	t.Logf("%s", said)
}

// diagnosis runs doctor and returns its findings, a line each: level, check, text.
func diagnosis(t *testing.T, as *syscall.Credential, line string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: as}
	out, err := cmd.Output()
	var found strings.Builder
	fails := 0
	for text := range strings.Lines(string(out)) {
		var f struct{ Event, Check, Level, Text, Cure string }
		if err := json.Unmarshal([]byte(text), &f); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if f.Event != "check" {
			continue
		}
		if f.Level == "fail" {
			fails++
		}
		fmt.Fprintf(&found, "%s %s %s; %s\n", f.Level, f.Check, f.Text, f.Cure)
	}
	if (err != nil) != (fails > 0) || found.Len() == 0 {
		t.Errorf("%s: %v with %d failures:\n%s", line, err, fails, found.String())
	}
	return found.String()
}

// TestVMDoctor: what doctor says of the machine's devices, in good health and with
// what can be broken here.
func TestVMDoctor(t *testing.T) {
	const doctor = pdlink + " doctor rdma --json "
	ip, net := os.Getenv("RDMA_IP_A"), os.Getenv("RDMA_NET_A")
	nobody := &syscall.Credential{Uid: 65534, Gid: 65534}
	for _, c := range []struct {
		name, ail, heal string
		as              *syscall.Credential
		line            string
		say             []string
	}{
		{name: "well", line: doctor, say: []string{
			"ok library", "warn devices rxe0: rxe", "ok files rxe0: this user may use /dev/infiniband/uverbs0", "ok ports rxe1:1 is active",
			"ok address rxe0:1: peers reach it at " + ip + " (RoCE v2", "ok mtu rxe0:1: packets of 4096 bytes on rx0, whose MTU is 9000",
			"ok memory rxe0: 67.1 MB can be registered", "ok counters rxe0:1: ",
		}},
		{name: "an address", line: doctor + ip, say: []string{"ok address a connection from " + ip + " uses rxe0 port 1, RoCE v2 " + ip}},
		{name: "an interface", line: doctor + os.Getenv("RDMA_NET_B"), say: []string{"ok address a connection from " + os.Getenv("RDMA_IP_B") + " uses rxe1 port 1"}},
		{name: "a device", line: doctor + "--device rxe1", say: []string{"ok ports rxe1:1 is active"}},
		{name: "another address", line: doctor + "127.0.0.1", say: []string{"fail address 127.0.0.1: the control connection's address 127.0.0.1 is on none of the devices rxe0, rxe1"}},
		{name: "small packets", ail: "ip link set " + net + " mtu 1500", heal: "ip link set " + net + " mtu 9000", line: doctor + ip,
			say: []string{"warn mtu rxe0:1: packets of 1024 bytes on rx0, whose MTU is 1500, and 4096 are possible; set the MTU"}},
		{name: "no right", ail: "chmod 600 /dev/infiniband/*", heal: "chmod 666 /dev/infiniband/*", as: nobody, line: doctor, say: []string{"fail devices rxe0: ", "fail files rxe0: this user may not use /dev/infiniband/uverbs0: "}},
		{name: "locked memory", as: nobody, line: "ulimit -l 8192; " + doctor,
			say: []string{"ok files rxe0", "fail memory rxe0: 67.1 MB cannot be registered", "raise the limit of locked memory: ulimit -l unlimited"}},
		{name: "port down", ail: "ip link set " + net + " down", heal: "ip link set " + net + " up", line: doctor, say: []string{"fail ports rxe0:1 is down, and no other port is active; plug the cable in"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.ail != "" {
				shell(t, c.ail)
				defer shell(t, c.heal)
			}
			found := diagnosis(t, c.as, c.line)
			for _, say := range c.say {
				if !strings.Contains(found, say) {
					t.Errorf("no %q in\n%s", say, found)
				}
			}
		})
	}
	healed(t)
}

// TestVMDoctorRefuses: a device that is not there is the command line's fault, and those
// that are there are named.
func TestVMDoctorRefuses(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), pdlink, "doctor", "rdma", "--json", "--device", "mlx5_0").Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Fatalf("%v: %s", err, out)
	}
	var told struct {
		Event, Error string
		Status       int
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &told); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if told.Event != "error" || told.Status != 2 || !strings.Contains(told.Error, "mlx5_0: this host has no such device") ||
		!strings.Contains(told.Error, "rxe0") || !strings.Contains(told.Error, "rxe1") {
		t.Errorf("%s", out)
	}
}

// healed waits until the machine is as it was: what a port loses with its interface
// comes back in the background.
func healed(t *testing.T) {
	t.Helper()
	shell(t, `ip link show rx0 >/dev/null
ip address show dev $RDMA_NET_A | grep -q $RDMA_IP_A || ip address add $RDMA_IP_A/24 dev $RDMA_NET_A
ip route replace $RDMA_IP_B dev $RDMA_NET_A src $RDMA_IP_A table 102
ip neigh replace $RDMA_IP_B lladdr 02:00:00:77:00:02 dev $RDMA_NET_A nud permanent`)
	for range 300 {
		if out, err := exec.CommandContext(t.Context(), pdlink, "doctor", "rdma", os.Getenv("RDMA_IP_A"), "--json").Output(); err == nil && strings.Contains(string(out), "uses rxe0 port 1, RoCE v2 "+os.Getenv("RDMA_IP_A")) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Error("the machine does not come back")
}
