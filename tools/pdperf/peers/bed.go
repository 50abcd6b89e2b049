package main

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

//go:embed netns.sh
var netnsScript []byte

//go:embed nixl_peer.py
var nixlScript []byte

// link is a way between the two ends of the bed.
type link struct {
	name     string
	shape    string  // as netns.sh knows it
	gbit     float64 // what it carries with all headers; 0: not limited
	loopback bool    // both ends in one namespace, on its loopback device
	mtu      int     // 0 for loopback
	guess    float64 // GB/s, for peers that are told an amount instead of a time: what they reach on a busy host too
}

func linkByName(name string) (link, error) {
	for _, l := range []link{
		{name: "lo", shape: "none", loopback: true, guess: 1.5},
		{name: "wire", shape: "none", guess: 1.5},
		{name: "10g", shape: "10gbit", gbit: 10, guess: 1.2},
		{name: "2.5g", shape: "2500mbit", gbit: 2.5, guess: 0.3},
		{name: "1g", shape: "1gbit", gbit: 1, guess: 0.12},
	} {
		if l.name == name {
			return l, nil
		}
	}
	return link{}, fmt.Errorf("link %q: want lo, wire, 10g, 2.5g or 1g", name)
}

// limit is the most payload that TCP gets over the link, in GB/s, 0 where it is
// not limited: IPv4 and TCP headers with timestamps take 52 bytes of each
// packet, and the token bucket counts 14 bytes of Ethernet header with it.
func (l link) limit() float64 {
	if l.mtu == 0 {
		return 0
	}
	return l.gbit / 8 * float64(l.mtu-52) / float64(l.mtu+14)
}

// bed is the pair of namespaces.
type bed struct {
	name       string
	dir        string // scripts
	port       int
	recvFrames int // buffers that pdperf's receiver used last, for the floor
}

// newBed makes the namespaces. A bed that was left behind by a killed run of the
// same process id is replaced.
func newBed(ctx context.Context) (*bed, error) {
	dir, err := os.MkdirTemp("", "pdperf-peers-")
	if err != nil {
		return nil, err
	}
	b := &bed{name: "pdp" + strconv.Itoa(os.Getpid()%1_000_000), dir: dir, port: 20000 + rand.IntN(4000), recvFrames: 16}
	err = os.WriteFile(b.path("netns.sh"), netnsScript, 0o600)
	if err == nil {
		err = os.WriteFile(b.path("nixl_peer.py"), nixlScript, 0o600)
	}
	if err == nil {
		err = b.netns(ctx, "up")
	}
	if err != nil {
		os.RemoveAll(dir) //nolint:errcheck // the error that counts is returned
		return nil, err
	}
	return b, nil
}

func (b *bed) path(name string) string { return filepath.Join(b.dir, name) }

// close removes the namespaces, also after an interrupt.
func (b *bed) close() error {
	err := b.netns(context.Background(), "down")
	os.RemoveAll(b.dir) //nolint:errcheck // the system's own clean-up takes what is left
	return err
}

func (b *bed) netns(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "bash", append([]string{b.path("netns.sh")}, args...)...)
	cmd.Env = append(os.Environ(), "PDPERF_NS="+b.name)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("netns.sh %v: %w: %s", args, err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

// prepare makes the cable be l.
func (b *bed) prepare(ctx context.Context, l link) error {
	if l.mtu > 0 {
		if err := b.netns(ctx, "mtu", strconv.Itoa(l.mtu)); err != nil {
			return err
		}
	}
	return b.netns(ctx, "shape", l.shape)
}

// nextPort is a port that no earlier measurement used.
func (b *bed) nextPort() int {
	b.port += 2
	return b.port
}

// end is where a process runs and how it is reached.
type end struct {
	namespace string
	device    string
	address   string // for programs that take any address
	local     string // a loopback address, on loopback or routed over the cable
}

// sender and receiver are the two ends for a link.
func (b *bed) sender(l link) end {
	if l.loopback {
		return end{b.name + "-a", "lo", "127.0.0.1", "127.0.0.1"}
	}
	return end{b.name + "-a", b.name + "0", "10.231.7.1", "127.77.0.1"}
}

func (b *bed) receiver(l link) end {
	if l.loopback {
		return b.sender(l)
	}
	return end{b.name + "-b", b.name + "1", "10.231.7.2", "127.77.0.2"}
}
