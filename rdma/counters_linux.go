package rdma

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// sysfsRoot has a directory for each RDMA device.
const sysfsRoot = "/sys/class/infiniband"

// readCounters asks the kernel.
func readCounters(device string, port int) (Counters, error) {
	return gatherCounters(sysfsRoot, askCounters, device, port)
}

// askCounters is what `rdma statistic show link` shows: the driver's counters in one
// question.
func askCounters(device string, port int) (Counters, error) {
	link, err := netlink.RdmaLinkByName(device)
	if err != nil {
		return nil, err
	}
	s, err := netlink.RdmaPortStatisticList(link, uint32(port))
	if err != nil {
		return nil, err
	}
	return s.Statistics, nil
}

// gatherCounters puts together the driver's counters, which ask tells, or files do where
// it does not, and those of the port that the specification of InfiniBand has.
func gatherCounters(root string, ask func(string, int) (Counters, error), device string, port int) (Counters, error) {
	dir := filepath.Join(root, device, "ports", strconv.Itoa(port))
	if _, err := os.Stat(dir); err != nil {
		return nil, fmt.Errorf("rdma: counters of %s port %d: %w", device, port, err)
	}
	all := Counters{}
	hardware, err := ask(device, port)
	if err != nil || len(hardware) == 0 {
		hardware, err = counterFiles(filepath.Join(dir, "hw_counters"))
	}
	standard, serr := counterFiles(filepath.Join(dir, "counters"))
	if err = errors.Join(err, serr); err != nil {
		return nil, fmt.Errorf("rdma: counters of %s port %d: %w", device, port, err)
	}
	for _, c := range []Counters{standard, hardware} { // the driver's own count where both have a name
		for name, v := range c {
			all[name] = v
		}
	}
	if len(all) == 0 {
		return nil, nil
	}
	return all, nil
}

// counterFiles reads a directory with a number in each file; none where there is no
// directory. Files that cannot be read, or hold no number, are no counters.
func counterFiles(dir string) (Counters, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	c := Counters{}
	for _, e := range entries {
		if e.Name() == "lifespan" { // how old values may be, in milliseconds
			continue
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			continue
		}
		if v, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64); err == nil {
			c[e.Name()] = v
		}
	}
	return c, nil
}
