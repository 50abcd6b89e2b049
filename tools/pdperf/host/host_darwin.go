package host

import "golang.org/x/sys/unix"

func read() Facts {
	var f Facts
	text := func(name string) string {
		s, err := unix.Sysctl(name)
		if err != nil {
			return ""
		}
		return s
	}
	f.Kernel = "Darwin " + text("kern.osrelease")
	f.CPU = text("machdep.cpu.brand_string")
	f.Boot = text("kern.bootsessionuuid")
	f.Memory, _ = unix.SysctlUint64("hw.memsize") //nolint:errcheck // then it is not told
	return f
}

// readLoad is not known here: the counters are Mach's, which Go has no call for.
func readLoad() Load { return Load{} }

// readPort knows the name and the MTU only.
func readPort(*Port) {}
