package linktest

import (
	"testing"
	"time"

	"pdlink/rdma"
	"pdlink/transport/failover"
)

// TestPortOfPeerIsDownAtFirst dials while the receiver's port is down for a moment: the
// route is tried again, not given up.
func TestPortOfPeerIsDownAtFirst(t *testing.T) {
	v := newHosts(personalities()[0])
	_, routes, _ := bench(t, v)
	v.b.SetPort(false)
	up := make(chan struct{})
	failed := 0
	d, err := failover.New(failover.Options{Routes: routes[:1], OnEvent: func(e failover.Event) {
		switch e.Kind {
		case failover.Failed:
			if failed++; failed == 1 {
				v.b.SetPort(true)
				close(up)
			}
		case failover.Barred:
			t.Errorf("given up for good: %v", e.Err)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := d.Dial(ctxOf(t))
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-up:
	case <-time.After(30 * time.Second):
		t.Error("the first dial did not fail")
	}
	if c.Facts().Link != rdma.Scheme {
		t.Errorf("connected over %s", c.Facts().Link)
	}
	d.Done(c)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
