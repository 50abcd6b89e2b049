//go:build !nordma && (linux || darwin) && (amd64 || arm64)

package verbs

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"pdlink/transport"
)

// TestLife: what the destroying call says decides whether an object is gone, and it is
// not called again for one that is.
func TestLife(t *testing.T) {
	var l life
	destroyed, released := 0, 0
	refusal := ErrBusy
	end := func() error {
		return l.end("thing", func() error { destroyed++; return refusal }, func() error { released++; return syscall.EINVAL })
	}
	if err := end(); !errors.Is(err, ErrBusy) || errors.Is(err, ErrLeft) || released != 0 {
		t.Errorf("refused: %v, released %d times", err, released)
	}
	if err := l.use(); err != nil {
		t.Errorf("use of one that was not destroyed: %v", err)
	}
	if err := end(); !errors.Is(err, ErrBusy) || destroyed != 1 {
		t.Errorf("in use: %v, destroyed %d times", err, destroyed)
	}
	l.leave()
	refusal = nil
	if err := end(); !errors.Is(err, ErrLeft) || !errors.Is(err, syscall.EINVAL) || !strings.Contains(err.Error(), "thing") {
		t.Errorf("destroyed, and its memory is left: %v", err)
	}
	if err := l.use(); !errors.Is(err, ErrClosed) {
		t.Errorf("use of one that is gone: %v", err)
	}
	if err := end(); err != nil || destroyed != 2 || released != 1 {
		t.Errorf("again: %v, destroyed %d times, released %d times", err, destroyed, released)
	}
}

// TestExplain gives reasons for registrations that failed.
func TestExplain(t *testing.T) {
	const size = 4 << 20
	none := memory{limit: noLimit, group: noLimit}
	for name, c := range map[string]struct {
		err         error
		m           memory
		says        string
		unavailable bool // no part of the memory would do
	}{
		"limit":          {syscall.ENOMEM, memory{limit: 1 << 20, group: noLimit}, "may lock 1024 KiB of memory in all", true},
		"used up":        {syscall.ENOMEM, memory{limit: 5 << 20, locked: 2 << 20, group: noLimit}, "has locked 2048", true},
		"within it":      {syscall.ENOMEM, memory{limit: 8 << 20, locked: 2 << 20, group: noLimit}, "resources of the device", false},
		"no limit":       {syscall.ENOMEM, none, "resources of the device", false},
		"group":          {syscall.ENOMEM, memory{limit: noLimit, group: 8 << 20, charged: 6 << 20}, "control group of this process may have 8192 KiB", false},
		"another reason": {syscall.EINVAL, memory{limit: 1 << 20}, "invalid argument", false},
	} {
		err := explain(c.err, AccessLocalWrite, size, c.m)
		if !errors.Is(err, c.err) || errors.Is(err, transport.ErrUnavailable) != c.unavailable || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want one that says %q", name, err, c.says)
		}
	}
}
