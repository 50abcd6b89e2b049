package host

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func read() Facts {
	var f Facts
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		f.Kernel = "Linux " + unix.ByteSliceToString(u.Release[:])
	}
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		f.Memory = uint64(info.Totalram) * uint64(info.Unit) //nolint:unconvert // uint32 on some systems
		f.Load = float64(info.Loads[0]) / (1 << unix.SI_LOAD_SHIFT)
	}
	cpu, _ := os.ReadFile("/proc/cpuinfo") // else it is not told
	f.CPU, f.Virtual = cpuOf(string(cpu))
	if f.CPU == "" { // arm64 has the part's number only
		model, _ := os.ReadFile("/sys/firmware/devicetree/base/model") // likewise
		f.CPU = strings.TrimRight(string(model), "\x00\n")
	}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // likewise
	f.Boot = strings.TrimSpace(string(boot))
	return f
}

// cpuOf is the model of /proc/cpuinfo's first processor, and whether it is virtual.
func cpuOf(text string) (model string, virtual bool) {
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "model name":
			model = strings.TrimSpace(value)
		case "flags":
			return model, slices.Contains(strings.Fields(value), "hypervisor")
		}
	}
	return model, false
}

// ticks is of /proc/stat's counters: USER_HZ is 100 on all platforms of Linux that Go has.
const ticks = 100

func readLoad() Load {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return Load{}
	}
	l := loadOf(string(stat))
	pressure, _ := os.ReadFile("/proc/pressure/cpu") // there are kernels without it
	l.Stalled = stalledOf(string(pressure))
	return l
}

// loadOf reads the line of /proc/stat that sums up all cores.
func loadOf(stat string) Load {
	line, _, _ := strings.Cut(stat, "\n")
	words := strings.Fields(line)
	if len(words) < 9 || words[0] != "cpu" {
		return Load{}
	}
	var v [8]float64
	for i := range v {
		n, err := strconv.ParseFloat(words[i+1], 64)
		if err != nil {
			return Load{}
		}
		v[i] = n / ticks
	}
	return Load{Known: true, Work: v[0] + v[1] + v[2], Softirq: v[5] + v[6], Steal: v[7]}
}

// stalledOf reads "some … total=MICROSECONDS" of /proc/pressure/cpu.
func stalledOf(pressure string) float64 {
	line, _, _ := strings.Cut(pressure, "\n")
	_, total, _ := strings.Cut(line, "total=")
	n, err := strconv.ParseUint(strings.TrimSpace(total), 10, 64)
	if err != nil {
		return 0
	}
	return float64(n) / 1e6
}

func readPort(p *Port) {
	dir := filepath.Join("/sys/class/net", p.Name)
	if driver, err := os.Readlink(filepath.Join(dir, "device", "driver")); err == nil {
		p.Driver = filepath.Base(driver)
		// Devices that are none say what they like: a veth pair 10 Gbit/s.
		speed, _ := os.ReadFile(filepath.Join(dir, "speed")) // else it is not told
		if n, err := strconv.Atoi(string(bytes.TrimSpace(speed))); err == nil && n > 0 {
			p.Mbit = n
		}
	}
	if link, err := netlink.LinkByName(p.Name); err == nil {
		if p.Driver == "" {
			p.Driver = link.Type()
		}
		list, _ := netlink.QdiscList(link) // else it is not told
		for _, q := range list {
			if t, ok := q.(*netlink.Tbf); ok && t.Attrs().Parent == netlink.HANDLE_ROOT {
				p.Shaped, p.Burst = t.Rate, uint64(float64(t.Rate)*float64(t.Buffer)/netlink.TickInUsec()/1e6)
			}
		}
	}
	p.Offloads = offloads(p.Name)
}

// offloads asks which of them are on.
func offloads(name string) (on []string) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd) //nolint:errcheck // a socket that nothing was sent on
	for _, o := range []struct {
		name string
		get  uint32
	}{{"tso", unix.ETHTOOL_GTSO}, {"gso", unix.ETHTOOL_GGSO}, {"gro", unix.ETHTOOL_GGRO}} {
		if v, ok := ethtool(fd, name, o.get); ok && v != 0 {
			on = append(on, o.name)
		}
	}
	return on
}

// ethtool asks for one value; see struct ethtool_value and struct ifreq of the kernel.
func ethtool(fd int, name string, get uint32) (value uint32, ok bool) {
	ask := struct{ cmd, data uint32 }{cmd: get}
	var request struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte // the rest of the kernel's union
	}
	if len(name) >= len(request.name) {
		return 0, false
	}
	copy(request.name[:], name)
	request.data = unsafe.Pointer(&ask)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request)))
	return ask.data, errno == 0
}
