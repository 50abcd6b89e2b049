//go:build rdmavm

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// receiver is a `pdlink decode` on device A that can be killed and started again.
type receiver struct {
	t      *testing.T
	args   []string
	cmd    *exec.Cmd
	log    *output
	starts int
	ended  chan struct{}
}

// output gathers what a process writes.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write adds to it.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

// String is all of it.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// listen waits until the receiver, as started last, can be reached.
func (r *receiver) listen() {
	r.t.Helper()
	if !until(func() bool { return strings.Count(r.log.String(), `"listening"`) >= r.starts }) {
		r.t.Fatalf("the receiver does not listen: %s", r.log)
	}
}

func (r *receiver) start() {
	r.t.Helper()
	r.cmd = exec.CommandContext(context.WithoutCancel(r.t.Context()), pdlink, r.args...)
	r.cmd.Stdout, r.cmd.Stderr = r.log, r.log
	if err := r.cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.starts++
	r.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		_ = cmd.Wait() // it is killed or stopped
		close(ended)
	}(r.cmd, r.ended)
}

func (r *receiver) stop(with syscall.Signal) {
	_ = r.cmd.Process.Signal(with) // it may have ended
	select {
	case <-r.ended:
	case <-time.After(patience):
		_ = r.cmd.Process.Kill()
		r.t.Error("the receiver does not end")
		<-r.ended
	}
}

// fault is something that befalls a transfer.
type fault struct {
	name  string
	do    func(t *testing.T, r *receiver, s *sender, d time.Duration)
	kills bool // the sender

	after float64       // the share of the bytes that is on its way when it comes
	d     time.Duration // how long it stays
	alone bool          // there is no other link
}

// faults are those that can come from outside of the processes.
func faults() []fault {
	nets := []string{os.Getenv("RDMA_NET_A"), os.Getenv("RDMA_NET_B")}
	loss := func(percent string) func(*testing.T, *receiver, *sender, time.Duration) {
		return func(t *testing.T, _ *receiver, _ *sender, d time.Duration) {
			for _, n := range nets {
				shell(t, "tc qdisc change dev "+n+" parent 1:1 handle 2: netem loss "+percent)
			}
			time.Sleep(d)
			for _, n := range nets {
				shell(t, "tc qdisc change dev "+n+" parent 1:1 handle 2: netem loss 0%")
			}
		}
	}
	return []fault{
		{name: "nothing", do: func(*testing.T, *receiver, *sender, time.Duration) {}},
		{name: "receiver killed and started again", do: func(_ *testing.T, r *receiver, _ *sender, d time.Duration) {
			r.stop(syscall.SIGKILL)
			time.Sleep(d / 4)
			r.start()
		}},
		{name: "receiver ended and started again", do: func(_ *testing.T, r *receiver, _ *sender, _ time.Duration) {
			r.stop(syscall.SIGTERM)
			r.start()
		}},
		{name: "sender killed", kills: true, do: func(_ *testing.T, _ *receiver, s *sender, _ time.Duration) { _ = s.cmd.Process.Kill() }},
		{name: "receiver stopped for a while", do: func(_ *testing.T, r *receiver, _ *sender, d time.Duration) {
			_ = r.cmd.Process.Signal(syscall.SIGSTOP)
			time.Sleep(d)
			_ = r.cmd.Process.Signal(syscall.SIGCONT)
		}},
		{name: "sender stopped for a while", do: func(_ *testing.T, _ *receiver, s *sender, d time.Duration) {
			_ = s.cmd.Process.Signal(syscall.SIGSTOP)
			time.Sleep(d)
			_ = s.cmd.Process.Signal(syscall.SIGCONT)
		}},
		{name: "a port down", do: func(t *testing.T, _ *receiver, _ *sender, d time.Duration) {
			i := int(d) % 2
			shell(t, "ip link set "+nets[i]+" down")
			time.Sleep(d / 4)
			restore(t)
		}},
		{name: "packets lost", do: loss("20%")},
		{name: "no packet through", do: loss("100%")},
		{name: "the queue pair fails", do: refuse},
	}
}

// restore brings both interfaces up, with what the kernel forgot meanwhile.
func restore(t *testing.T) {
	t.Helper()
	shell(t, `ip link set $RDMA_NET_A up; ip link set $RDMA_NET_B up
		ip route replace $RDMA_IP_A dev $RDMA_NET_B src $RDMA_IP_B table 101; ip route replace $RDMA_IP_B dev $RDMA_NET_A src $RDMA_IP_A table 102
		ip neigh replace $RDMA_IP_B lladdr 02:00:00:77:00:02 dev $RDMA_NET_A nud permanent
		ip neigh replace $RDMA_IP_A lladdr 02:00:00:77:00:01 dev $RDMA_NET_B nud permanent`)
}

// refuse answers a request of the sender's queue pair in the receiver's name, with a
// refusal that is final: the queue pair goes into error. It is tried until that has
// happened, since the numbers of requests are guesses.
func refuse(t *testing.T, _ *receiver, s *sender, _ time.Duration) {
	c := whole(t, os.Getenv("RDMA_IP_A"))
	victim := &net.UDPAddr{IP: net.ParseIP(os.Getenv("RDMA_IP_B")), Port: rocePort}
	pairs := regexp.MustCompile(`lqpn (\d+) rqpn \d+ type RC state RTS .*sq-psn (\d+) `)
	done := until(func() bool {
		select {
		case <-s.ended:
			return true
		default:
		}
		list := pairs.FindAllStringSubmatch(shell(t, "rdma resource show qp link $RDMA_B"), -1)
		for _, m := range list {
			qp, _ := strconv.ParseUint(m[1], 10, 32)
			psn, _ := strconv.ParseUint(m[2], 10, 32)
			// One of them is the oldest that is not acknowledged yet: Soft-RoCE has 128 of
			// those at most, and goes on while these are on their way.
			for n := -128; n < 64; n++ {
				refusal := negative(c.LocalAddr().(*net.UDPAddr), victim, uint32(qp), uint32(int(psn)+n))
				if _, err := c.WriteToUDP(refusal, victim); err != nil {
					t.Fatal(err)
				}
			}
		}
		return strings.Contains(shell(t, "rdma resource show qp link $RDMA_B"), "state ERR") || strings.Contains(s.log.String(), "lost the connection")
	})
	if !done {
		t.Error("the queue pair did not fail")
	}
}

const rocePort = 4791

// whole is a socket whose packets may not be cut up: their IP headers have no number of
// their own, so that what they will be is known.
func whole(t *testing.T, ip string) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.ParseIP(ip)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	raw, err := c.SyscallConn()
	if err == nil {
		cerr := raw.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_PMTUDISC_DO)
		})
		err = errors.Join(err, cerr)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// negative is the payload of a RoCE v2 packet that acknowledges request psn of a queue
// pair with "remote access error" (InfiniBand Architecture 1.4, 9.2, 9.7.5.2.8 and
// annex A17): transport header, acknowledgement header, and the checksum over them and
// over the IP and UDP headers, where what routers change counts as ones.
func negative(from, to *net.UDPAddr, qp, psn uint32) []byte {
	const length = 12 + 4 + 4
	p := []byte{0x11, 0x40, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x62, 0, 0, 0}
	binary.BigEndian.PutUint32(p[4:], qp)
	binary.BigEndian.PutUint32(p[8:], psn&0xffffff)
	covered := bytes.Repeat([]byte{0xff}, 8)
	covered = append(covered, 0x45, 0xff, 0, 20+8+length, 0, 0, 0x40, 0, 0xff, 17, 0xff, 0xff)
	covered = append(append(covered, from.IP.To4()...), to.IP.To4()...)
	covered = binary.BigEndian.AppendUint16(covered, uint16(from.Port))
	covered = binary.BigEndian.AppendUint16(covered, uint16(to.Port))
	covered = append(covered, 0, 8+length, 0xff, 0xff)
	masked := bytes.Clone(p)
	masked[4] = 0xff
	return binary.LittleEndian.AppendUint32(p, crc32.ChecksumIEEE(append(covered, masked...)))
}
