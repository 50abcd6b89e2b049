package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"pdlink/rdma"
)

// What to do on Linux.
const (
	libraryCure = "install rdma-core and the provider of the card (Debian: apt install ibverbs-providers); a program built with the tag nordma has no RDMA"
	driverCure  = "look for a card (lspci | grep -i mellanox) and load its driver (modprobe mlx5_ib ib_uverbs); in a container give it --device /dev/infiniband; without a card use tcp://"
	openCure    = "let this user read and write /dev/infiniband/uverbs*: Debian's rdma-core allows everybody, a udev rule or group can; in a container --device /dev/infiniband"
	memoryCure  = "raise the limit of locked memory: ulimit -l unlimited, LimitMEMLOCK=infinity of systemd, --ulimit memlock=-1 of docker"
	countsCure  = "let this user read /sys/class/infiniband"
	deviceNames = "`pdlink doctor rdma` and `ls /sys/class/infiniband` list their names"

	// Of interfaces, whose names are put in.
	addressCommand = "ip address add … dev %s"
	interfaceHint  = " (`rdma link` says which it is)"
	interfacesHint = "`rdma link` lists them"
	mtuCommand     = "ip link set dev %s mtu 9000"

	tellsNeighbours = true // the system does, by rdma.Neighbour
)

// neighbourCommand makes a fixed neighbour entry.
func neighbourCommand(peer, iface string) string {
	return fmt.Sprintf("ip neighbour replace %s lladdr MAC dev %s nud permanent, with the peer's MAC", peer, iface)
}

// netdevs are the network interfaces of a port, which get its addresses; none where the
// kernel does not say.
func (h rdmaHost) netdevs(v rdma.Device, p rdma.Port) (names []string) {
	dir := filepath.Join("sys/class/infiniband", v.Name)
	if parent := h.sysText(dir, "parent"); parent != "" { // of Soft-RoCE, which has no card
		return []string{parent}
	}
	all := h.sysList(filepath.Join(dir, "device/net"))
	for _, name := range all {
		if n, err := strconv.Atoi(h.sysText(dir, "device/net", name, "dev_port")); err == nil && n == p.Number-1 { // from 0
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return all
	}
	return names
}

// sysText reads a small file of the system; "" where there is none.
func (h rdmaHost) sysText(path ...string) string {
	b, err := os.ReadFile(filepath.Join(append([]string{h.root}, path...)...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// sysList is what a directory of the system has, in order; nothing where there is none.
func (h rdmaHost) sysList(path string) []string {
	entries, err := os.ReadDir(filepath.Join(h.root, path))
	if err != nil {
		return nil
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// lookFiles looks whether this user may open the devices' files.
func (d *rdmaDoctor) lookFiles(context.Context) (found []finding) {
	const class = "sys/class/infiniband_verbs"
	listed := d.host.sysList("sys/class/infiniband")
	if len(listed) > 0 && len(d.host.sysList(class)) == 0 {
		return []finding{bad(fmt.Sprintf("the kernel has %s, and nothing to reach it by", listText(listed)), "load ib_uverbs: modprobe ib_uverbs")}
	}
	for _, name := range d.host.sysList(class) {
		device := d.host.sysText(class, name, "ibdev")
		if device == "" || !d.means(device) { // the file of the interface's version, and other devices'
			continue
		}
		path := filepath.Join("/dev/infiniband", name)
		f, err := os.OpenFile(filepath.Join(d.host.root, path), os.O_RDWR, 0)
		if err == nil {
			f.Close() //nolint:errcheck // nothing was done with it
		}
		found = append(found, fileFinding(device, path, err))
	}
	return found
}

func fileFinding(device, path string, err error) finding {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return bad(fmt.Sprintf("%s: there is no %s", device, path), "in a container give it --device /dev/infiniband; else look whether udev runs")
	case err != nil:
		return bad(fmt.Sprintf("%s: this user may not use %s: %v", device, path, err), openCure)
	}
	return good("%s: this user may use %s", device, path)
}

// slotFacts is the connection of a device to its host.
type slotFacts struct {
	speed, most float64 // GT/s of a lane, now and at best
	width, wide int     // lanes
}

// rate is what passes in bits a second, about: what the coding of lanes takes off is
// small from the third generation on.
func (s slotFacts) rate() uint64 { return uint64(s.speed * 1e9 * float64(s.width) * 128 / 130) }

// slot reads how a device is connected; false where it does not say.
func (h rdmaHost) slot(device string) (s slotFacts, ok bool) {
	number := func(name string) float64 {
		word, _, _ := strings.Cut(h.sysText("sys/class/infiniband", device, "device", name), " ") // "32.0 GT/s PCIe"
		v, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return 0
		}
		return v
	}
	s = slotFacts{number("current_link_speed"), number("max_link_speed"), int(number("current_link_width")), int(number("max_link_width"))}
	return s, s.speed > 0 && s.width > 0
}

// lookSlot looks whether cards are connected to their host as fast as they can be.
func (d *rdmaDoctor) lookSlot(context.Context) (found []finding) {
	spark := slices.ContainsFunc(d.gpus(), isGB10)
	for _, v := range d.survey.Devices {
		s, ok := d.host.slot(v.Name)
		if !ok {
			continue
		}
		var rate uint64
		for _, p := range v.Ports {
			if p.Active {
				rate = max(rate, p.Rate)
			}
		}
		found = append(found, slotFinding(v.Name, s, rate, spark))
	}
	return found
}

func slotFinding(device string, s slotFacts, rate uint64, spark bool) finding {
	text := fmt.Sprintf("%s: PCIe of %g GT/s x%d, about %d Gbit/s", device, s.speed, s.width, s.rate()/1e9)
	switch {
	case s.speed < s.most && spark:
		return doubt(fmt.Sprintf("%s, and %g GT/s are possible", text, s.most),
			"start the DGX Spark anew, from cold: after some starts a port of it stays near 13 Gbit/s; `pdperf` measures it")
	case s.speed < s.most:
		return doubt(fmt.Sprintf("%s, and %g GT/s are possible", text, s.most), "put the card into a slot of its generation, or seat it anew; look for PCIe settings of the firmware")
	case s.rate() < rate && spark:
		return good("%s: as on every DGX Spark, whose ports of 200 Gbit/s have half of that each", text)
	case s.rate() < rate:
		return doubt(fmt.Sprintf("%s, and its port has %d", text, rate/1e9), "put the card into a slot with more lanes")
	}
	return good("%s", text)
}

// gpus are the models of NVIDIA's GPUs, as their driver tells.
func (d *rdmaDoctor) gpus() (models []string) {
	const dir = "proc/driver/nvidia/gpus"
	for _, name := range d.host.sysList(dir) {
		for line := range strings.Lines(d.host.sysText(dir, name, "information")) {
			if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "Model" {
				models = append(models, strings.TrimSpace(value))
			}
		}
	}
	return models
}

func isGB10(model string) bool { return strings.Contains(model, "GB10") }

// lookGPU says what is to be expected of the GPU's memory.
func (d *rdmaDoctor) lookGPU(context.Context) (found []finding) {
	if len(d.survey.Devices) == 0 {
		return nil
	}
	for _, model := range d.gpus() {
		if isGB10(model) {
			found = append(found, good("%s shares its memory with the processor and has neither GPUDirect RDMA nor dma-buf for it: blocks are sent from host memory, which costs nothing more", model))
			continue
		}
		found = append(found, good("%s: blocks are sent from host memory", model))
	}
	return found
}
