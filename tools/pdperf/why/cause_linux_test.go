//go:build cables

package why_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pdlink/tools/linkkeys"
	"pdlink/tools/pdperf/flow"
	"pdlink/tools/pdperf/flow/cable"
	"pdlink/tools/pdperf/why"
)

// injected is a transfer with something that makes it slow.
type injected struct {
	cable    cable.Options
	blocks   int
	line     float64       // payload bytes/s, where the cable has a rate
	pause    time.Duration // of the source
	disk     uint64        // bytes/s; 0: no disk
	sender   bool          // others are busy on the sender's core
	receiver bool          // others are busy on the receiver's core
}

// TestInjected injects each cause into real transfers between two processes in two
// network namespaces, and holds the sentence to it.
func TestInjected(t *testing.T) {
	for want, in := range map[why.Cause]injected{
		why.ReceiveWindow: {cable: cable.Options{Buffer: 24 << 10, Delay: 5 * time.Millisecond}, blocks: 1},
		why.Loss:          {cable: cable.Options{Loss: 0.01}, blocks: 16},
		why.Wire:          {cable: cable.Options{Rate: 50e6}, blocks: 4, line: 50e6 / 8 * 1448 / 1514},
		why.ReceiverCPU:   {blocks: 16, receiver: true},
		why.SenderCPU:     {blocks: 16, sender: true},
		why.Leases:        {blocks: 8, pause: 10 * time.Millisecond},
		why.Disk:          {blocks: 8, disk: 20e6},
	} {
		t.Run(strings.ReplaceAll(string(want), " ", "-"), func(t *testing.T) {
			v := in.run(t)
			t.Log("Limited by:", v)
			if v.Cause != want || v.Share <= 0 || v.Share > 1 {
				t.Errorf("%q with share %.2f, injected was %q", v, v.Share, want)
			}
		})
	}
}

// run makes the transfer and judges it.
func (in injected) run(t *testing.T) why.Verdict {
	t.Helper()
	bed, err := cable.New(in.cable)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { bed.Close() })
	dial, listen, remove, err := linkkeys.Temporary()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(remove)
	to := task{Receive: true, Keys: listen, Addr: cable.B.Addr().String() + ":0", Blocks: in.blocks, Core: lastCore(in.receiver)}
	var slow func(pid int)
	if in.disk > 0 {
		to.Dir = t.TempDir()
		slow = throttle(t, to.Dir, in.disk)
	}
	if in.sender || in.receiver {
		busy(t)
	}
	r := start(t, bed, cable.B, to)
	if slow != nil {
		slow(r.cmd.Process.Pid)
	}
	addr, err := r.next()
	if err != nil {
		t.Fatal(err)
	}
	from := task{Keys: dial, Addr: strings.TrimSpace(string(addr)), Blocks: in.blocks, Pause: in.pause, Watch: true, Core: lastCore(in.sender)}
	sent, received := start(t, bed, cable.A, from).done(t), r.done(t)
	input := why.Input{
		Seconds: received.Seconds, Bytes: received.Bytes, Line: in.line,
		Sender: sent.End, Receiver: received.End, Flow: why.FlowOf(moved(sent)),
	}
	for _, f := range sent.Report.Flows {
		input.Flow.Closed += f.ZeroWindows
		input.Flow.ClosedFor += f.WindowClosed.Seconds()
	}
	text, _ := json.Marshal(input)
	t.Logf("%s", text)
	return why.Limit(input)
}

// moved are the sockets that carried data: not the control socket, which does not
// wait for anything.
func moved(e told) (list []flow.Counters) {
	for _, s := range e.Sockets {
		if s.Sent > e.Bytes/100 && s.Sent > chunkBytes {
			list = append(list, s)
		}
	}
	return list
}

// process is an end that runs.
type process struct {
	cmd  *exec.Cmd
	next func() ([]byte, error)
}

// start runs an end at an end of the cable.
func start(t *testing.T, bed *cable.Cable, at cable.End, do task) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(do)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.CommandContext(t.Context(), self)}
	p.cmd.Env, p.cmd.Stderr = append(os.Environ(), theEnd+"="+string(text)), os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := bed.In(at, p.cmd.Start); err != nil {
		t.Fatal(err)
	}
	p.next = lines(out)
	return p
}

// done is what an end says in the end.
func (p *process) done(t *testing.T) told {
	t.Helper()
	text, err := p.next()
	var said told
	if err == nil {
		err = json.Unmarshal(text, &said)
	}
	if err2 := p.cmd.Wait(); err != nil || err2 != nil || said.Error != "" {
		t.Fatalf("%v, %v, %s", err, err2, said.Error)
	}
	return said
}

// lastCore is where busy processes are, for an end that shares it with them; zero for
// one that does not, which is no core's number in a task.
func lastCore(shared bool) int {
	if !shared {
		return 0
	}
	return runtime.NumCPU()
}

// busy keeps the last core busy until the test ends.
func busy(t *testing.T) {
	t.Helper()
	const others = 4
	for range others {
		c := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
		done := make(chan error)
		go func() { // its thread ends with it
			runtime.LockOSThread()
			done <- errors.Join(pin(0, runtime.NumCPU()-1), c.Start())
		}()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			c.Process.Kill()
			c.Wait()
		})
	}
}

// throttle makes the disk of a directory slow for a process that it is then given, by
// the kernel's I/O controller, of either version.
func throttle(t *testing.T, dir string, rate uint64) func(pid int) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	device := wholeDisk(fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)))
	name := fmt.Sprintf("pdperf-why-%d", os.Getpid())
	group, file, text := "/sys/fs/cgroup/blkio/"+name, "blkio.throttle.write_bps_device", fmt.Sprintf("%s %d", device, rate)
	if _, err := os.Stat(filepath.Dir(group)); err != nil {
		group, file, text = "/sys/fs/cgroup/"+name, "io.max", fmt.Sprintf("%s wbps=%d", device, rate)
		if err := os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+io"), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) { // the process leaves it a moment after its end
			if err := os.Remove(group); err == nil {
				return
			} else if time.Now().After(end) {
				t.Error(err)
				return
			}
		}
	})
	if err := os.WriteFile(filepath.Join(group, file), []byte(text), 0); err != nil {
		t.Fatal(err)
	}
	return func(pid int) {
		if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), fmt.Append(nil, pid), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// wholeDisk is the disk of a partition.
func wholeDisk(device string) string {
	at := "/sys/dev/block/" + device
	if _, err := os.Stat(at + "/partition"); err != nil {
		return device
	}
	text, err := os.ReadFile(at + "/../dev")
	if err != nil {
		return device
	}
	return strings.TrimSpace(string(text))
}
