//go:build !nordma && (linux || darwin) && (amd64 || arm64)

package verbs

import (
	"errors"
	"strings"
	"testing"
)

// TestMissingFunctions: what a provider's table of functions lacks is not called, and
// what needs it is not made. The library here has no function that could be called.
func TestMissingFunctions(t *testing.T) {
	mem, unmap, err := Map(pageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer unmap()
	lib := &library{path: "libtest", getEvent: 1, ackCQ: 1, destroyChannel: 1}
	p := &pd{dev: &device{lib: lib, name: "test0", ctx: uintptr(Addr(mem))}}
	send := &cq{pd: p}
	pair := func() error { return errorOf(p.NewQP(QPOptions{SendCQ: send, RecvCQ: send})) }
	ops := p.dev.table()
	for name, c := range map[string]struct {
		table cContextOps
		make  func() error
	}{
		"channel": {cContextOps{PollCQ: 1, PostSend: 1, PostRecv: 1}, func() error { return errorOf(p.NewChannel()) }},
		"queue":   {cContextOps{ReqNotifyCQ: 1, PostSend: 1, PostRecv: 1}, func() error { return errorOf(p.NewCQ(8, nil)) }},
		"sends":   {cContextOps{ReqNotifyCQ: 1, PollCQ: 1, PostRecv: 1}, pair},
		"recvs":   {cContextOps{ReqNotifyCQ: 1, PollCQ: 1, PostSend: 1}, pair},
	} {
		*ops = c.table
		if err := c.make(); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "its provider") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if p.life.users != 0 || send.life.users != 0 {
		t.Errorf("%d and %d users are left", p.life.users, send.life.users)
	}
}

// errorOf is the error of a call.
func errorOf[T any](_ T, err error) error { return err }
