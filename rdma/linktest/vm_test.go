//go:build rdmavm

package linktest

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"pdlink/rdma"
	"pdlink/tcp"
	"pdlink/transport"
	"pdlink/transport/session"
	"pdlink/transport/transporttest"
)

// device is one of the machine's devices: "A" or "B".
func device(tb testing.TB, which string) string {
	tb.Helper()
	name := os.Getenv("RDMA_" + which)
	if name == "" {
		tb.Fatal("RDMA_" + which + " is not set: these tests run in the machine of vmtest")
	}
	return name
}

// vmOptions is the tcp options of one end, on a real device.
func vmOptions(s session.Options, name string, o rdma.Options) tcp.Options {
	if s.Sums == nil {
		s.Sums = session.Options{}.WithDefaults().Sums
	}
	o.Device = name
	return tcp.Options{Session: s, Carrier: rdma.New(o)}
}

// vmHarness has the patience that an emulated machine needs.
func vmHarness(t *testing.T) transporttest.Harness {
	t.Helper()
	a, b := device(t, "A"), device(t, "B")
	return transporttest.Harness{
		Name: rdma.Scheme, Sockets: true, ControlOnly: true, Lanes: 2, Tries: 12, Patience: time.Minute,
		Links: func(_ testing.TB, x, y session.Options) (dial, listen transport.Link, addr string) {
			return tcp.New(vmOptions(x, a, rdma.Options{})), tcp.New(vmOptions(y, b, rdma.Options{})), "127.0.0.1:0"
		},
	}
}

// TestVMSuite runs the conformance suite between two real devices.
func TestVMSuite(t *testing.T) { transporttest.Run(t, vmHarness(t)) }

// TestVMModes moves blocks in each mode, in clear between devices that are named and
// sealed between devices that are chosen by the addresses of the control connection.
func TestVMModes(t *testing.T) {
	server, client := twoHosts(t)
	for mode, o := range map[string]rdma.Options{
		"write+immediate": {}, "write+send": {NoImmediate: true}, "read": {NoRemoteWrite: true},
	} {
		for _, sealed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, sealed %v", mode, sealed), func(t *testing.T) {
				var chosen []rdma.Choice
				mine := o
				mine.OnChoice = func(c rdma.Choice) { chosen = append(chosen, c) }
				a, b, addr := device(t, "A"), device(t, "B"), "127.0.0.1:0"
				if sealed {
					a, b, addr = "", "", os.Getenv("RDMA_IP_B")+":0"
				}
				d, l := vmOptions(session.Options{}, a, mine), vmOptions(session.Options{}, b, o)
				if sealed {
					d.Keys, l.Keys = client, server
				}
				ln, err := tcp.New(l).Listen(t.Context(), addr)
				if err != nil {
					t.Fatal(err)
				}
				defer ln.Close()
				r := &receiver{bytes: map[string]int{}}
				served := make(chan error, 1)
				go func() { served <- r.serve(t.Context(), ln) }()
				c, err := tcp.New(d).Dial(t.Context(), ln.Addr())
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(send(ctxOf(t), c, func(int) {}), <-served); err != nil {
					t.Error(err)
				}
				if f := c.Facts(); f.Sealed != sealed || f.Link != rdma.Scheme {
					t.Errorf("facts %+v", f)
				}
				if len(chosen) != 1 || chosen[0].Mode != mode || chosen[0].Device != device(t, "A") {
					t.Errorf("chosen %v, want mode %q and the dialling end's device", chosen, mode)
				}
				t.Log(chosen)
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
