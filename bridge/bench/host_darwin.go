package bench

import (
	"context"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

func readHost() (name string, memory uint64) {
	name, err := unix.Sysctl("machdep.cpu.brand_string")
	if err != nil {
		name = "" // it is not told
	}
	memory, err = unix.SysctlUint64("hw.memsize")
	if err != nil {
		memory = 0 // likewise
	}
	return short(name), memory
}

func readSample(ctx context.Context) reading {
	s := reading{vmStat: tool(ctx, "vm_stat"), therm: tool(ctx, "pmset", "-g", "therm")}
	// struct xsw_usage of sys/sysctl.h: total, available, used, each of 64 bits.
	if raw, err := unix.SysctlRaw("vm.swapusage"); err == nil && len(raw) >= 24 {
		s.Swapped = binary.LittleEndian.Uint64(raw[16:])
	}
	return s
}
