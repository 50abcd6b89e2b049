//go:build rdmavm

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pdlink/transport"
)

func sysfsText(t *testing.T, path ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(append([]string{sysfs}, path...)...))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func TestVMDevices(t *testing.T) {
	p := must(Load(Options{}))(t)
	all := must(p.Devices())(t)
	if len(all) != 2 {
		t.Fatalf("devices %+v, want two", all)
	}
	a, b := names()
	for i, name := range []string{a, b} {
		d := all[i]
		if d.Name != name || d.Class != ClassSoft {
			t.Errorf("device %+v, want %s of class %s", d, name, ClassSoft)
		}
	}
	if _, err := p.Open("nosuch"); !errors.Is(err, transport.ErrUnavailable) || !strings.Contains(err.Error(), a) {
		t.Errorf("open of a device that is not there: %v", err)
	}
}

func TestVMQueries(t *testing.T) {
	a, b := names()
	for i, name := range []string{a, b} {
		d := openNode(t, name)
		attr := must(d.Attr())(t)
		if attr.Ports != 1 || attr.MaxQPWR < 128 || attr.MaxMRSize < 1<<30 || attr.MaxRead != 128 {
			t.Errorf("limits %+v of Soft-RoCE", attr)
		}
		port := must(d.Port(1))(t)
		if port.State != PortActive || port.LinkLayer != LinkEthernet || port.ActiveMTU != MTU4096 || port.ActiveMTU.Bytes() != 4096 || port.GIDs < 3 {
			t.Errorf("port %+v", port)
		}
		if _, err := d.Port(2); err == nil {
			t.Error("a port 2 answers")
		}
		if _, err := d.Port(0); !errors.Is(err, transport.ErrInvalid) {
			t.Errorf("port 0: %v", err)
		}
		netif := must(net.InterfaceByName(os.Getenv([]string{"RDMA_NET_A", "RDMA_NET_B"}[i])))(t)
		want := netip.MustParseAddr(os.Getenv([]string{"RDMA_IP_A", "RDMA_IP_B"}[i]))
		found := 0
		for _, g := range must(d.GIDs(1))(t) {
			if g.IfIndex != netif.Index || g.Kind != GIDRoCEv2 && g.Kind != GIDRoCEv1 {
				t.Errorf("GID %+v, want one of interface %d", g, netif.Index)
			}
			// What the kernel says without the library.
			text := sysfsText(t, name, "ports", "1", "gids", fmt.Sprint(g.Index))
			if netip.MustParseAddr(text).Unmap() != g.GID.Addr() {
				t.Errorf("GID %v at %d, the kernel has %s", g.GID, g.Index, text)
			}
			kind, dev := gidKind(name, 1, g.Index)
			if kind != g.Kind || dev != netif.Name {
				t.Errorf("kind %v of %q from the kernel, %v from the library", kind, dev, g.Kind)
			}
			if g.GID.Addr() == want {
				found++
			}
		}
		if found == 0 {
			t.Errorf("no GID of %v", want)
		}
	}
}

// TestVMOldLibrary lists GIDs as for libraries without the newer calls.
func TestVMOldLibrary(t *testing.T) {
	name, _ := names()
	l := must(load(""))(t)
	d := must((&provider{l}).Open(name))(t)
	defer d.Close()
	want := must(d.GIDs(1))(t)
	for what, fn := range map[string]*uintptr{"before the table": &l.queryGIDTable, "before entries": &l.queryGIDEntry} {
		saved := *fn
		*fn = 0
		if what == "before entries" {
			l.queryGIDTable = 0
		}
		if got := must(d.GIDs(1))(t); fmt.Sprint(got) != fmt.Sprint(want) || len(want) == 0 {
			t.Errorf("by a library from %s %+v, by this one %+v", what, got, want)
		}
		*fn = saved
	}
}

func TestVMPortEvents(t *testing.T) {
	name, _ := names()
	d := openNode(t, name)
	wait := func(want EventKind) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		for {
			e, err := d.Event(ctx)
			if err != nil {
				t.Fatalf("wait for %v: %v", want, err)
			}
			t.Logf("%v, port %d", e.Kind, e.Port)
			if e.Kind == want {
				if e.Port != 1 || e.QP != 0 {
					t.Errorf("event %+v, want one of port 1", e)
				}
				return
			}
		}
	}
	net := os.Getenv("RDMA_NET_A")
	output(t, "ip", "link", "set", net, "down")
	defer restore(t)
	wait(EventPortError)
	if p := must(d.Port(1))(t); p.State == PortActive {
		t.Errorf("port is %v after its interface went down", p.State)
	}
	output(t, "ip", "link", "set", net, "up")
	wait(EventPortActive)
	if p := must(d.Port(1))(t); p.State != PortActive {
		t.Errorf("port is %v after its interface came up", p.State)
	}
}

// restore brings the interface up with what the kernel forgets while it is down.
func restore(t *testing.T) {
	t.Helper()
	peer := os.Getenv("RDMA_IP_B")
	output(t, "ip", "link", "set", os.Getenv("RDMA_NET_A"), "up")
	output(t, "ip", "route", "replace", peer, "dev", os.Getenv("RDMA_NET_A"), "src", os.Getenv("RDMA_IP_A"), "table", "102")
	output(t, "ip", "neigh", "replace", peer, "lladdr", "02:00:00:77:00:02", "dev", os.Getenv("RDMA_NET_A"), "nud", "permanent")
	d := openNode(t, os.Getenv("RDMA_A"))
	deadline := time.Now().Add(long)
	for {
		for _, g := range must(d.GIDs(1))(t) {
			if g.Kind == GIDRoCEv2 && g.GID.Addr().Is4() {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Fatal("the GID did not come back")
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestVMEventEnds(t *testing.T) {
	name, _ := names()
	d := must(must(Load(Options{}))(t).Open(name))(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := d.Event(ctx)
		ended <- err
	}()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("event after its context: %v", err)
	}
	go func() {
		_, err := d.Event(context.Background())
		ended <- err
	}()
	closed(t, name, d.Close)
	select {
	case err := <-ended:
		if !errors.Is(err, ErrClosed) {
			t.Errorf("event after close: %v", err)
		}
	case <-time.After(long):
		t.Fatal("close did not end it")
	}
	closed(t, "again", d.Close)
	for what, err := range map[string]error{
		"attr": second(d.Attr()), "port": second(d.Port(1)), "gids": second(d.GIDs(1)), "domain": second(d.NewPD()), "event": second(d.Event(t.Context())),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s of a closed device: %v", what, err)
		}
	}
}

func TestVMRegister(t *testing.T) {
	name, _ := names()
	d := openNode(t, name)
	pd := must(d.NewPD())(t)
	defer pd.Close()
	mem, unmap, err := Map(8 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer unmap()
	const all = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead
	// Many regions of the same memory at once, each with keys of its own.
	keys := map[uint32]bool{}
	var regions []MR
	for i := range 100 {
		from := i << 12
		m := must(pd.Register(mem[from:from+4<<20], all))(t)
		regions = append(regions, m)
		if in := m.Info(); in.Addr != Addr(mem[from:]) || in.Length != 4<<20 || keys[in.Remote] {
			t.Fatalf("region %d is %+v", i, in)
		}
		keys[m.Info().Remote] = true
	}
	if err := pd.Close(); !errors.Is(err, ErrBusy) {
		t.Errorf("close of a domain with regions: %v", err)
	}
	for _, m := range regions {
		closed(t, "region", m.Deregister)
		closed(t, "region again", m.Deregister)
	}
	if _, err := pd.Register(nil, all); !errors.Is(err, transport.ErrInvalid) {
		t.Errorf("registration of nothing: %v", err)
	}
	// Only reading is allowed for those, so it fails where it is asked to be written.
	if err := unix.Mprotect(mem[:4096], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	if _, err := pd.Register(mem[:4096], all); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("registration of memory without access: %v", err)
	}
	// Remote writing needs local writing.
	if m, err := pd.Register(mem[8192:16384], AccessRemoteWrite); err == nil {
		t.Error("remote writing without local writing is allowed")
		closed(t, "region", m.Deregister)
	}
}

// TestVMLockedMemory registers as a user who may lock little, in a process of its own.
func TestVMLockedMemory(t *testing.T) {
	const child = "VERBS_TEST_LOCKED"
	if os.Getenv(child) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestVMLockedMemory$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		// nobody, without the privilege to lock as it likes
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "this process may lock 1024 KiB") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	limit := unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		t.Fatal(err)
	}
	if got, ok := lockedLimit(); !ok || got != 1<<20 {
		t.Errorf("limit %d, %v", got, ok)
	}
	name, _ := names()
	pd := must(openNode(t, name).NewPD())(t)
	defer pd.Close()
	mem, unmap, err := Map(4 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer unmap()
	small := must(pd.Register(mem[:64<<10], AccessLocalWrite))(t)
	defer small.Deregister()
	_, err = pd.Register(mem, AccessLocalWrite)
	if !errors.Is(err, transport.ErrUnavailable) || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("registration above the limit: %v", err)
	}
	t.Log(err)
}
