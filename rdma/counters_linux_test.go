package rdma

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// TestCounterFiles reads what drivers have in sysfs, beside what the kernel answers.
func TestCounterFiles(t *testing.T) {
	root := filepath.Join("testdata", "sysfs")
	mute := func(string, int) (Counters, error) { return nil, errors.ErrUnsupported }
	files := Counters{
		"duplicate_request": 0, "implied_nak_seq_err": 1, "local_ack_timeout_err": 7, "out_of_buffer": 0, "out_of_sequence": 12,
		"packet_seq_err": 3, "rnr_nak_retry_err": 0, "np_cnp_sent": 5, "rp_cnp_handled": 2, "rx_icrc_encapsulated": 0,
		"req_cqe_error": 4, "port_xmit_data": 1234567, "port_rcv_data": 7654321, "port_xmit_packets": 4000, "port_rcv_packets": 5000,
		"symbol_error": 0, "link_downed": 1,
	}
	answered := Counters{"sent_pkts": 812, "port_xmit_packets": 4001}
	standard := Counters{"port_xmit_data": 1234567, "port_rcv_data": 7654321, "port_rcv_packets": 5000, "symbol_error": 0, "link_downed": 1}
	both := maps.Clone(standard)
	maps.Copy(both, answered)
	for name, c := range map[string]struct {
		ask    func(string, int) (Counters, error)
		device string
		port   int
		want   Counters
	}{
		"the kernel answers":  {func(string, int) (Counters, error) { return answered, nil }, "mlx5_0", 1, both},
		"it does not":         {mute, "mlx5_0", 1, files},
		"it has none to tell": {func(string, int) (Counters, error) { return nil, nil }, "mlx5_0", 1, files},
		"nobody counts":       {mute, "rdma_none", 1, nil},
	} {
		got, err := gatherCounters(root, c.ask, c.device, c.port)
		if err != nil || !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, %v, want %v", name, got, err, c.want)
		}
	}
	for _, port := range []int{0, 2} {
		if got, err := gatherCounters(root, mute, "mlx5_0", port); !errors.Is(err, os.ErrNotExist) || got != nil {
			t.Errorf("port %d: %v, %v", port, got, err)
		}
	}
	if got, err := ReadCounters("no-such-device", 1); err == nil || got != nil {
		t.Errorf("no device: %v, %v", got, err)
	}
}

// TestCounterFileThatIsNone is left out, and what cannot be listed is an error.
func TestCounterFileThatIsNone(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "a_directory"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"negative": "-1", "words": "none", "good": " 18446744073709551615\n", "lifespan": "10", "empty": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := counterFiles(dir)
	if want := (Counters{"good": 1<<64 - 1}); err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if got, err := counterFiles(filepath.Join(dir, "good")); err == nil {
		t.Errorf("a file that is no directory: %v", got)
	}
}
