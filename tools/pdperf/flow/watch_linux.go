package flow

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

// license is that of the programs as they are loaded: the kernel gives the function
// that reads its memory to no other.
const license = "Dual MIT/GPL"

// Watcher watches flows until it is closed. It may be used concurrently.
type Watcher struct {
	maps  maps
	notes []string
	began int64 // monotonic clock, ns

	mu    sync.Mutex // guards what follows
	links []link.Link
	last  *Report // of a watcher that was closed
}

// maps are what the programs share with each other and with the Watcher.
type maps struct {
	flows    *ebpf.Map // ports to what is kept of a flow
	empty    *ebpf.Map // a flow of which nothing is known yet
	samples  *ebpf.Map // ports of a writer to its sample
	softirqs *ebpf.Map // for each core
}

func (m *maps) close() error {
	return errors.Join(m.flows.Close(), m.empty.Close(), m.samples.Close(), m.softirqs.Close())
}

// hook is a program and where it belongs.
type hook struct {
	at    string // tracepoint; "": the calls of a cgroup's sockets
	gives string // what there is not without it
	make  func(*maps, []uint16, *offsets) asm.Instructions
}

const softirqTime = "softirq time"

// hooks has a program each.
func hooks() []hook {
	return []hook{
		{"tcp_retransmit_skb", "retransmits", onRetransmit},
		{"tcp_probe", "windows and softirq time", onSegment},
		{"sock_recv_length", "receive-queue time", onRead},
		{"sk_data_ready", "receive-queue time", onReady},
		{"sock_send_length", "time from write to read", onWrite},
		{"softirq_entry", softirqTime, onSoftirq},
		{"softirq_exit", softirqTime, onSoftirqEnd},
		{"", "round trips", onSockOps},
	}
}

// Watch begins to watch the connections on o.Ports, of all processes and network
// namespaces of this host. Round trips are seen only of connections that are made
// after it. Errors: ErrPrivilege; ErrUnsupported; one that says which port is none.
func Watch(o WatchOptions) (*Watcher, error) {
	if len(o.Ports) < 1 || len(o.Ports) > MaxPorts || slices.Contains(o.Ports, 0) {
		return nil, fmt.Errorf("watch flows: 1 to %d ports, none of them 0, not %v", MaxPorts, o.Ports)
	}
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return nil, fmt.Errorf("%w: the programs are for little-endian machines", ErrUnsupported)
	}
	rlimit.RemoveMemlock() //nolint:errcheck // kernels from 5.11 on do not need it; the others say so next
	where, err := findOffsets()
	if err != nil {
		return nil, err
	}
	w := new(Watcher)
	if err := w.maps.open(); err != nil {
		return nil, explain(err)
	}
	if w.began, err = monotonic(); err != nil {
		return nil, errors.Join(err, w.maps.close())
	}
	list := hooks()
	if o.NoSoftirq {
		list = slices.DeleteFunc(list, func(h hook) bool { return h.gives == softirqTime })
	}
	if err := w.attachAll(list, func(h hook) error { return w.attach(h, o, where) }); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// attachAll puts programs to their places. One that has none is noted, and the others watch
// without it: a system may refuse some and not all. It is an error where that is said of
// each.
func (w *Watcher) attachAll(list []hook, attach func(hook) error) error {
	var first error
	failed := 0
	for _, h := range list {
		if err := attach(h); err != nil {
			failed++
			w.note(h, err)
			if first == nil || refused(err) && !refused(first) {
				first = err
			}
		}
	}
	if failed == len(list) && first != nil {
		return explain(first)
	}
	return nil
}

// open makes the maps.
func (m *maps) open() error {
	for _, one := range []struct {
		to   **ebpf.Map
		spec ebpf.MapSpec
	}{
		{&m.flows, ebpf.MapSpec{Name: "pdperf_flows", Type: ebpf.Hash, KeySize: 4, ValueSize: flowSize, MaxEntries: maxFlows}},
		{&m.empty, ebpf.MapSpec{Name: "pdperf_empty", Type: ebpf.Array, KeySize: 4, ValueSize: flowSize, MaxEntries: 1}},
		{&m.samples, ebpf.MapSpec{Name: "pdperf_samples", Type: ebpf.LRUHash, KeySize: 4, ValueSize: sampleSize, MaxEntries: maxFlows}},
		{&m.softirqs, ebpf.MapSpec{Name: "pdperf_softirq", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: softirqSize, MaxEntries: 1}},
	} {
		made, err := ebpf.NewMap(&one.spec)
		if err != nil {
			return errors.Join(fmt.Errorf("make %s: %w", one.spec.Name, err), m.close())
		}
		*one.to = made
	}
	return nil
}

// attach loads a program and puts it to its place.
func (w *Watcher) attach(h hook, o WatchOptions, where *offsets) error {
	spec := &ebpf.ProgramSpec{
		Name: "pdperf", License: license, Instructions: h.make(&w.maps, o.Ports, where),
		Type: ebpf.Tracing, AttachType: ebpf.AttachTraceRawTp, AttachTo: h.at,
	}
	if h.at == "" {
		spec.Type, spec.AttachType = ebpf.SockOps, ebpf.AttachCGroupSockOps
	}
	p, err := ebpf.NewProgram(spec)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	defer p.Close() //nolint:errcheck // its link keeps it
	var l link.Link
	if h.at != "" {
		l, err = link.AttachTracing(link.TracingOptions{Program: p})
	} else {
		dir := o.Cgroup
		if dir == "" {
			if dir, err = cgroupRoot(); err != nil {
				return err
			}
		}
		l, err = link.AttachCgroup(link.CgroupOptions{Path: dir, Attach: ebpf.AttachCGroupSockOps, Program: p})
	}
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	w.links = append(w.links, l)
	return nil
}

// note says what there is not.
func (w *Watcher) note(h hook, err error) {
	at := "tracepoint " + h.at
	if h.at == "" {
		at = "sock_ops"
	}
	reason, _, _ := strings.Cut(err.Error(), "\n")
	w.notes = append(w.notes, fmt.Sprintf("no %s: %s: %s", h.gives, at, reason))
}

// refused reports whether an error is about rights.
func refused(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) && !isVerifier(err)
}

// isVerifier reports whether the kernel has looked at a program and found it wrong.
func isVerifier(err error) bool {
	var v *ebpf.VerifierError
	return errors.As(err, &v) && len(v.Log) > 0
}

// explain makes one line of what the kernel refused.
func explain(err error) error {
	if refused(err) {
		return fmt.Errorf("%w: run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN", ErrPrivilege)
	}
	return fmt.Errorf("%w: %w", ErrUnsupported, err)
}

// cgroupRoot is where cgroup v2 is mounted.
func cgroupRoot() (string, error) {
	f, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "", fmt.Errorf("find cgroup v2: %w", err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if words := strings.Fields(s.Text()); len(words) > 2 && words[2] == "cgroup2" {
			return words[1], nil
		}
	}
	return "", errors.New("cgroup v2 is not mounted (mount -t cgroup2 none /sys/fs/cgroup)")
}

func monotonic() (int64, error) {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0, fmt.Errorf("read the monotonic clock: %w", err)
	}
	return t.Nano(), nil
}

// Report is what was seen so far; of a watcher that was closed, until then.
func (w *Watcher) Report() Report {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last != nil {
		return *w.last
	}
	return w.report()
}

// report is Report. The caller holds mu.
func (w *Watcher) report() Report {
	r := Report{Flows: []Seen{}, Notes: slices.Clone(w.notes)}
	var ports uint32
	value := make([]byte, flowSize)
	now, err := monotonic()
	if err == nil {
		r.At = time.Duration(now - w.began)
	}
	all := w.maps.flows.Iterate()
	for all.Next(&ports, &value) {
		s, lost := w.decode(ports, value)
		if shut := int64(word(value, atShut)); shut > 0 && err == nil {
			s.WindowClosed += time.Duration(max(0, now-shut))
		}
		r.Flows = append(r.Flows, s)
		r.Lost += lost
	}
	if err := all.Err(); err != nil {
		r.Notes = append(r.Notes, "not all flows were read: "+err.Error())
	}
	if len(r.Flows) >= maxFlows {
		r.Notes = append(r.Notes, fmt.Sprintf("there may have been more than the %d flows that are kept", maxFlows))
	}
	slices.SortFunc(r.Flows, func(a, b Seen) int {
		return cmp.Or(cmp.Compare(a.LocalPort, b.LocalPort), cmp.Compare(a.RemotePort, b.RemotePort))
	})
	return r
}

// decode reads what is kept of a flow, and how many events are not.
func (w *Watcher) decode(ports uint32, value []byte) (s Seen, lost uint64) {
	s = Seen{
		LocalPort: uint16(ports >> 16), RemotePort: bits.ReverseBytes16(uint16(ports)),
		Retransmits: word(value, atRetransmits), ZeroWindows: word(value, atZeroWindows),
		WindowClosed: time.Duration(word(value, atClosed)), Softirq: time.Duration(softirqEvery * word(value, atSoftirq)),
		Events: []Event{},
	}
	for i := range HistogramBuckets {
		s.RTT.Buckets[i] = word(value, atRTT+8*i)
		s.Wait.Buckets[i] = word(value, atWait+8*i)
		s.WriteToRead.Buckets[i] = word(value, atWriteToRead+8*i)
	}
	for i := range min(word(value, atEventCount), maxEvents) {
		at := atEvents + eventSize*int(i)
		e := Event{At: time.Duration(int64(word(value, at)) - w.began), What: WindowOpens}
		switch word(value, at+8) {
		case kindRetransmit:
			e.What = Retransmit
		case kindShut:
			e.What = WindowShut
		}
		s.Events = append(s.Events, e)
	}
	return s, word(value, atEventsLost)
}

func word(b []byte, at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }

// Close takes the programs out of the kernel; what they have seen can still be asked
// for. It is idempotent.
func (w *Watcher) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last != nil {
		return nil
	}
	r := w.report()
	w.last = &r
	var errs []error
	for _, l := range slices.Backward(w.links) {
		errs = append(errs, l.Close())
	}
	return errors.Join(append(errs, w.maps.close())...)
}
