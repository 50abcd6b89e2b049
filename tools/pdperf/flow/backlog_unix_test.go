//go:build linux || darwin

package flow_test

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"pdlink/tools/pdperf/flow"
)

// TestBacklog has bytes wait for a reader who does not come, then a reader who waits.
func TestBacklog(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	here := l.Addr().(*net.TCPAddr).AddrPort()
	out, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	// sampled looks until there are some samples.
	sampled := func() flow.Backlog {
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
			s := flow.Sample(time.Millisecond, func(local, _ netip.AddrPort) bool { return local == here })
			time.Sleep(50 * time.Millisecond)
			if b := s.Stop(); b.Samples >= 5 {
				return b
			}
		}
		t.Fatal("no samples")
		return flow.Backlog{}
	}
	if b := sampled(); b.Waiting != 0 {
		t.Errorf("nothing was sent, %+v", b)
	}
	if _, err := out.Write([]byte("word")); err != nil {
		t.Fatal(err)
	}
	if b := sampled(); b.Waiting != b.Samples {
		t.Errorf("nobody reads, %+v", b)
	}
	found, err := flow.Sockets(func(local, _ netip.AddrPort) bool { return local == here })
	if err != nil || len(found) != 1 || found[0].Local != here || found[0].Received != 4 {
		t.Errorf("%+v, %v", found, err)
	}
	if _, err := io.ReadFull(in, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	if b := sampled(); b.Waiting != 0 {
		t.Errorf("all was read, %+v", b)
	}
}
