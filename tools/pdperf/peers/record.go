package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// record is one measurement, a line of the -out file.
type record struct {
	Peer     string  `json:"peer"`
	Link     string  `json:"link"`
	MTU      int     `json:"mtu"` // 0 on loopback
	Block    int64   `json:"block_bytes"`
	Rep      int     `json:"rep"`
	Goodput  float64 `json:"goodput_gb_per_s"`
	Limit    float64 `json:"limit_gb_per_s"` // payload that the link carries, 0: not limited
	GB       float64 `json:"gb"`
	Sender   float64 `json:"sender_cpu_s_per_gb"`
	Receiver float64 `json:"receiver_cpu_s_per_gb"`
	P50      float64 `json:"p50_ms"` // block times, 0 where the peer does not tell
	P99      float64 `json:"p99_ms"`
	Verified bool    `json:"verified"` // every byte, by a checksum
	Sealed   bool    `json:"sealed"`   // encrypted and authenticated
	Retrans  int64   `json:"retransmits"`
	Foreign  float64 `json:"foreign_cores"` // used by anything else meanwhile
	Note     string  `json:"note"`
	Error    string  `json:"error"`
}

// line is a record for whoever watches.
func (r record) line() string {
	where := fmt.Sprintf("%s mtu %d, %d MB, #%d, %-12s", r.Link, r.MTU, r.Block/1_000_000, r.Rep, r.Peer)
	if r.Error != "" {
		return where + "  FAILED: " + strings.ReplaceAll(r.Error, "\n", " ")
	}
	return fmt.Sprintf("%s  %.3f GB/s  sender %.3f  receiver %.3f s/GB  p50 %.1f p99 %.1f ms  foreign %.2f  %s",
		where, r.Goodput, r.Sender, r.Receiver, r.P50, r.P99, r.Foreign, r.Note)
}

// trial is what a peer is to measure.
type trial struct {
	bed   *bed
	link  link
	block int64
	time  time.Duration
	port  int // and the next
}

func (t trial) sender() end   { return t.bed.sender(t.link) }
func (t trial) receiver() end { return t.bed.receiver(t.link) }

// url is where pdperf's receiving ends listen.
func (t trial) url() string {
	return "tcp://" + net.JoinHostPort(t.receiver().local, strconv.Itoa(t.port))
}

// figures is what a peer measured.
type figures struct {
	record
	spent float64 // CPU seconds of its processes in their whole life
}

// measure runs one peer and looks at what else ran meanwhile.
func measure(ctx context.Context, p peer, t trial) record {
	ctx, cancel := context.WithTimeout(ctx, 3*t.time+time.Minute)
	defer cancel()
	begin, before := time.Now(), busySeconds()
	f, err := p.run(ctx, t)
	r := f.record
	r.Peer, r.Link, r.MTU, r.Block, r.Limit = p.name, t.link.name, t.link.mtu, t.block, t.link.limit()
	r.Foreign = max(0, (busySeconds()-before-f.spent)/time.Since(begin).Seconds())
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

// busySeconds is how long the cores of the host have been busy in all, 0 where
// that is not told.
func busySeconds() float64 {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	var user, nice, system, idle, wait, irq, softirq float64
	if _, err := fmt.Sscanf(string(text), "cpu %f %f %f %f %f %f %f", &user, &nice, &system, &idle, &wait, &irq, &softirq); err != nil {
		return 0
	}
	return (user + nice + system + irq + softirq) / ticksPerSecond
}

// waitQuiet waits until the host is quiet, but no longer than limit.
func waitQuiet(ctx context.Context, limit time.Duration) {
	for end := time.Now().Add(limit); time.Now().Before(end) && ctx.Err() == nil; {
		before := busySeconds()
		time.Sleep(quietLook)
		if (busySeconds()-before)/quietLook.Seconds() < quietCores {
			return
		}
	}
}
