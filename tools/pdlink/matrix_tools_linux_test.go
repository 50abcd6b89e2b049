//go:build faults

package main

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDropPackets: what TCP does not hear of is sent again.
func TestDropPackets(t *testing.T) {
	for _, percent := range []int{0, 40} {
		t.Run(strconv.Itoa(percent), func(t *testing.T) { dropSome(t, percent) })
	}
}

func dropSome(t *testing.T, percent int) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := newRelay(t, l.Addr().String(), 0)
	c, err := net.Dial("tcp", r.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r.lose(t, percent)
	got := make(chan int64, 1)
	go func() { n, _ := io.Copy(io.Discard, s); got <- n }()
	want := int64(0)
	for range 12 { // a packet each
		n, err := c.Write(make([]byte, 1000))
		if err != nil {
			t.Fatal(err)
		}
		want += int64(n)
		time.Sleep(5 * time.Millisecond)
	}
	c.(*net.TCPConn).CloseWrite()
	n := <-got
	if again := retransmits(t, c.(*net.TCPConn)); n != want || (again > 0) != (percent > 0) {
		t.Errorf("%d %% lost: %d of %d bytes, %d packets sent again", percent, n, want, again)
	}
}

// retransmits is how many packets of a socket were sent again.
func retransmits(t *testing.T, c *net.TCPConn) byte {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	info := make([]byte, 256)
	if err := raw.Control(func(fd uintptr) { err = getTCPInfo(fd, info) }); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	const totalRetrans = 100 // tcpi_total_retrans of struct tcp_info
	return info[totalRetrans]
}

// TestBreakCalls has the calls of a child fail that it wants to fail, and no
// others.
func TestBreakCalls(t *testing.T) {
	dir := t.TempDir()
	for mode, want := range map[string]string{breakWriteMode: "write failed", breakSyncMode: "sync failed"} {
		p := startAs(t, mode, nil, "file", filepath.Join(dir, mode))
		if status := p.wait(); status != exitOK || strings.TrimSpace(p.out.String()) != want {
			t.Errorf("%s: status %d: %v", mode, status, p)
		}
	}
}

// breakMain breaks calls and says which of a write and a sync failed.
func breakMain(path string, calls []uintptr) int {
	f, err := os.Create(path)
	if err == nil {
		err = breakCalls(calls...)
	}
	if err != nil {
		os.Stderr.WriteString(err.Error())
		return exitFailed
	}
	done := make(chan error)
	go func() { // on another thread, most likely
		_, err := f.WriteAt([]byte("x"), 0)
		done <- err
	}()
	if err := <-done; err != nil {
		if !strings.Contains(err.Error(), syscall.EIO.Error()) {
			return exitFailed
		}
		os.Stdout.WriteString("write failed\n")
	}
	if err := f.Sync(); err != nil {
		os.Stdout.WriteString("sync failed\n")
	}
	return exitOK
}

// TestMatrixJobs: every fault comes up before any comes twice, every cell in the
// end, and each run can be named.
func TestMatrixJobs(t *testing.T) {
	kinds := 0
	for _, f := range matrixFaults() {
		if !f.long {
			kinds++
		}
	}
	cells := kinds * len(matrixPhases()) * 2
	seen, faults := map[string]bool{}, map[string]bool{}
	for i, j := range matrixJobs(cells, 7) {
		again, err := parseMatrixJob(j.String())
		if err != nil || again != j {
			t.Fatalf("%v is read as %v: %v", j, again, err)
		}
		if i < kinds {
			faults[j.cell.fault] = true
		}
		if !strings.Contains(j.cell.fault, "30 s") {
			seen[j.cell.String()] = true
		}
	}
	if cells >= matrixLongFrom {
		kinds-- // the first is a long one
	}
	if len(faults) < kinds || len(seen) < cells-1 {
		t.Errorf("%d faults and %d of %d cells", len(faults), len(seen), cells)
	}
	for _, bad := range []string{"", "cut", "cut/idle/clear", "cut/idle 3", "cut/idle/clear x", " 3"} {
		if j, err := parseMatrixJob(bad); err == nil {
			t.Errorf("%q is read as %v", bad, j)
		}
	}
}
