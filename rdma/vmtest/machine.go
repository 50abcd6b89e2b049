package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Exit statuses of this program that are not the command's.
const (
	statusTime = 124 // the limit passed
	statusNone = 125 // the machine gave none
)

// bootLimit is how long a start may take before it counts as hung; it takes some
// three seconds on an idle host.
const bootLimit = 90 * time.Second

// boots is how often a start that hangs is tried.
const boots = 3

// machine is a virtual machine to run one job in.
type machine struct {
	image  image
	cpus   int
	memory int // MiB
	mtu    int // of the veth pair; Soft-RoCE takes the largest path MTU below it
	limit  time.Duration
	steady int    // nanoseconds that an instruction takes by the machine's clock, a power of two; 0: the clock is the host's
	log    string // keeps the console there; empty: nowhere
	stdout io.Writer
	stderr io.Writer
}

// job is what a machine does.
type job struct {
	dir     string   // its content is the job's directory; empty: nothing
	files   []string // further files and directories for it
	env     []string // NAME=VALUE
	command []string // words; a single one is a line of shell
}

// run boots, runs the job, and returns its exit status.
func (m machine) run(ctx context.Context, j job) (int, error) {
	tmp, err := os.MkdirTemp("", "vmtest")
	if err != nil {
		return statusNone, fmt.Errorf("make directory: %w", err)
	}
	defer os.RemoveAll(tmp) //nolint:errcheck // a directory of the system for such things
	initrd := filepath.Join(tmp, "initrd")
	if err := m.writeInitrd(initrd, j); err != nil {
		return statusNone, err
	}
	for try := 1; ; try++ {
		status, started, err := m.boot(ctx, tmp, initrd)
		if started || try == boots || ctx.Err() != nil {
			return status, err
		}
		fmt.Fprintln(m.stderr, "vmtest: the machine did not start, trying again:", err)
	}
}

// writeInitrd writes the image with the job behind it.
func (m machine) writeInitrd(path string, j job) error {
	out, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("write initial file system: %w", err)
	}
	base, err := os.Open(m.image.base)
	if err == nil {
		_, err = io.Copy(out, base)
		err = errors.Join(err, base.Close())
	}
	if err != nil {
		return errors.Join(fmt.Errorf("copy image: %w", err), out.Close())
	}
	a := newArchive(out)
	a.dir("job")
	a.text("job/.vmtest", j.script(), 0o644)
	if j.dir != "" {
		a.tree("job", j.dir)
	}
	for _, f := range j.files {
		a.tree(filepath.Join("job", filepath.Base(f)), f)
	}
	return errors.Join(a.close(), out.Close())
}

// script is the job in shell.
func (j job) script() string {
	var b strings.Builder
	for _, e := range j.env {
		name, value, _ := strings.Cut(e, "=")
		fmt.Fprintf(&b, "export %s=%s\n", name, quote(value))
	}
	if len(j.command) == 1 {
		return b.String() + j.command[0] + "\n"
	}
	for _, word := range j.command {
		b.WriteString(quote(word) + " ")
	}
	return b.String() + "\n"
}

// quote makes one word of shell.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// ports of the machine, by the number that guestInit opens them with.
const (
	portOut = 1 + iota
	portErr
	portStatus
	portsEnd
)

// boot starts the emulator once. started says that the job ran.
func (m machine) boot(ctx context.Context, tmp, initrd string) (status int, started bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, m.limit)
	defer cancel()
	run, stop := context.WithCancel(ctx)
	defer stop()
	console := filepath.Join(tmp, "console")
	marks := &statusPort{begun: make(chan struct{})}
	sinks := [portsEnd]io.Writer{portOut: m.stdout, portErr: m.stderr, portStatus: marks}
	var readers sync.WaitGroup
	var listeners [portsEnd]net.Listener
	for n := portOut; n < portsEnd; n++ {
		path := socketPath(tmp, n)
		_ = os.Remove(path) // of a start before
		if listeners[n], err = (&net.ListenConfig{}).Listen(ctx, "unix", path); err != nil {
			closeAll(listeners[:])
			return statusNone, false, fmt.Errorf("listen for the machine: %w", err)
		}
		readers.Go(func() { copyOne(listeners[n], sinks[n]) })
	}
	cmd := exec.CommandContext(run, "qemu-system-x86_64", m.arguments(tmp, console, initrd)...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	timer := time.AfterFunc(bootLimit, func() {
		select {
		case <-marks.begun:
		default:
			stop()
		}
	})
	ended := cmd.Run()
	timer.Stop()
	closeAll(listeners[:])
	readers.Wait()
	if m.log != "" {
		err = m.keepConsole(console)
	}
	status, started, found := marks.result()
	switch {
	case found:
		return status, true, err
	case started && ctx.Err() != nil:
		return statusTime, true, fmt.Errorf("time limit of %v passed", m.limit)
	}
	return statusNone, started, errors.Join(err, noStatus(ended, complaints.Bytes(), tail(console)))
}

// noStatus is the error of a machine that said nothing of its command. ended is how the
// emulator ended, nil for a quiet end.
func noStatus(ended error, texts ...[]byte) error {
	err := fmt.Errorf("no exit status from the machine\n%s", bytes.Join(texts, nil))
	if ended != nil {
		err = fmt.Errorf("%w: %w", ended, err)
	}
	return err
}

func socketPath(tmp string, port int) string { return filepath.Join(tmp, "port"+strconv.Itoa(port)) }

// closeAll ends Accepts that are under way.
func closeAll(listeners []net.Listener) {
	for _, l := range listeners {
		if l != nil {
			_ = l.Close() // takes its socket away; nothing can be lost
		}
	}
}

// copyOne accepts one connection and copies what comes to w.
func copyOne(l net.Listener, w io.Writer) {
	c, err := l.Accept()
	if err != nil {
		return // the emulator did not come so far
	}
	defer c.Close()
	_, _ = io.Copy(w, c) // ends with the emulator
}

func (m machine) keepConsole(console string) error {
	data, err := os.ReadFile(console)
	if err == nil {
		err = os.WriteFile(m.log, data, 0o644)
	}
	if err != nil {
		return fmt.Errorf("keep console: %w", err)
	}
	return nil
}

// tail is the end of the console's text.
func tail(console string) []byte {
	const most = 4 << 10
	data, err := os.ReadFile(console)
	if err != nil {
		return nil
	}
	return data[max(0, len(data)-most):]
}

// arguments of the emulator.
func (m machine) arguments(tmp, console, initrd string) []string {
	// preempt=full: else whoever polls keeps the kernel's own threads waiting for a
	// slice of time. The rest makes the start shorter.
	kernel := "console=ttyS0 panic=-1 preempt=full nokaslr mitigations=off tsc=reliable no_timer_check cryptomgr.notests " +
		"random.trust_cpu=1 audit=0 apparmor=0 rcupdate.rcu_expedited=1 nowatchdog loglevel=4 vmtest.mtu=" + strconv.Itoa(m.mtu)
	args := append(m.processors(),
		"-cpu", "max,-erms,-fsrm", // with them the kernel copies by an instruction that is emulated byte by byte
		"-m", strconv.Itoa(m.memory), "-machine", "q35",
		"-nodefaults", "-no-user-config", "-nographic", "-no-reboot", "-monitor", "none",
		"-kernel", m.image.kernel, "-initrd", initrd, "-append", kernel,
		"-chardev", "file,id=console,path="+console, "-serial", "chardev:console",
		"-device", "virtio-serial-pci,max_ports=8", "-device", "isa-debug-exit,iobase=0xf4,iosize=1",
	)
	for n := portOut; n < portsEnd; n++ {
		id := "port" + strconv.Itoa(n)
		args = append(args, "-chardev", "socket,id="+id+",path="+socketPath(tmp, n),
			"-device", "virtserialport,nr="+strconv.Itoa(n)+",chardev="+id+",name="+id)
	}
	return args
}

// processors is how the emulator runs them. Counted instructions are of one processor: with
// two the kernel's start waits for ever.
func (m machine) processors() []string {
	if m.steady == 0 {
		return []string{"-accel", "tcg,thread=multi", "-smp", strconv.Itoa(m.cpus)}
	}
	// Without sleep the clock of a machine that waits goes on to the next timer at once.
	shift := bits.Len(uint(m.steady)) - 1
	return []string{"-accel", "tcg,thread=single", "-smp", "1", "-icount", fmt.Sprintf("shift=%d,sleep=off,align=off", shift)}
}

// statusPort reads what the machine says of its job: "run" when it begins, "rc N"
// when it ended.
type statusPort struct {
	begun chan struct{} // closed when the job begins

	mu   sync.Mutex // guards text and once
	text bytes.Buffer
	once sync.Once
}

// Write takes the next part of it.
func (s *statusPort) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text.Write(p)
	if strings.HasPrefix(s.text.String(), "run\n") {
		s.once.Do(func() { close(s.begun) })
	}
	return len(p), nil
}

// result is the exit status, whether the job began, and whether there is a status.
func (s *statusPort) result() (status int, started, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for line := range strings.Lines(s.text.String()) {
		line = strings.TrimSpace(line)
		if line == "run" {
			started = true
		}
		if number, ok := strings.CutPrefix(line, "rc "); ok {
			if n, err := strconv.Atoi(number); err == nil && n >= 0 && n < 256 {
				status, found = n, true
			}
		}
	}
	return status, started, found
}
