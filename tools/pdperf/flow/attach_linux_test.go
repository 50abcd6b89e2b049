package flow

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOneHookIsRefused: the others watch on, and one line says what there is not.
func TestOneHookIsRefused(t *testing.T) {
	all := hooks()
	for name, errs := range map[string]map[string]error{
		"rights":      {"tcp_probe": fmt.Errorf("attach: %w", unix.EPERM)},
		"access":      {"": fmt.Errorf("attach: %w", unix.EACCES)},
		"not there":   {"sk_data_ready": errors.New("load: no such tracepoint\nand more")},
		"all but one": {"tcp_probe": unix.EPERM, "sock_recv_length": unix.EPERM, "sk_data_ready": unix.EPERM, "sock_send_length": unix.EPERM, "softirq_entry": unix.EPERM, "softirq_exit": unix.EPERM, "": unix.EPERM},
	} {
		w, tried := new(Watcher), 0
		err := w.attachAll(all, func(h hook) error { tried++; return errs[h.at] })
		if err != nil || tried != len(all) || len(w.notes) != len(errs) {
			t.Errorf("%s: %v after %d of %d, noted %q", name, err, tried, len(all), w.notes)
		}
		for _, n := range w.notes {
			if !strings.HasPrefix(n, "no ") || strings.Contains(n, "\n") {
				t.Errorf("%s: %q", name, n)
			}
		}
	}
	for name, c := range map[string]struct {
		of   func(i int) error
		want error
	}{
		"no rights at all":    {func(int) error { return unix.EPERM }, ErrPrivilege},
		"some rights":         {func(i int) error { return []error{errors.New("odd"), unix.EPERM}[i%2] }, ErrPrivilege},
		"a kernel without it": {func(int) error { return errors.New("odd") }, ErrUnsupported},
	} {
		w, i := new(Watcher), -1
		if err := w.attachAll(all, func(hook) error { i++; return c.of(i) }); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}
