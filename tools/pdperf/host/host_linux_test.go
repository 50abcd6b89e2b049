package host

import "testing"

func TestCPUOf(t *testing.T) {
	text := "processor\t: 0\nmodel name\t: A  Fast One\nflags\t\t: fpu hypervisor\n\nprocessor\t: 1\nmodel name\t: other\n"
	if m, v := cpuOf(text); m != "A  Fast One" || !v {
		t.Errorf("%q, %v", m, v)
	}
	if m, v := cpuOf("model name: x\nflags: fpu hypervisors\n"); m != "x" || v {
		t.Errorf("%q, %v", m, v)
	}
	if m, v := cpuOf("processor : 0\nCPU part : 0xd85\n"); m != "" || v {
		t.Errorf("%q, %v", m, v)
	}
}

func TestThisLinux(t *testing.T) {
	if f := Read(); f.Memory == 0 || len(f.Boot) != 12 || f.Load < 0 {
		t.Errorf("%+v", f)
	}
	if l := ReadLoad(); !l.Known || l.Work <= 0 {
		t.Errorf("%+v", l)
	}
}

func TestLoadOf(t *testing.T) {
	l := loadOf("cpu  100 20 300 4000 50 6 7 800 0 0\ncpu0 1 2 3\n")
	if want := (Load{Known: true, Work: 4.2, Softirq: 0.13, Steal: 8}); l != want {
		t.Errorf("%+v, want %+v", l, want)
	}
	for _, bad := range []string{"", "cpu", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8 9", "cpu a b c d e f g h"} {
		if l := loadOf(bad); l.Known {
			t.Errorf("%q: %+v", bad, l)
		}
	}
	if s := stalledOf("some avg10=1.00 avg60=2 avg300=3 total=2500000\nfull avg10=0 total=9\n"); s != 2.5 {
		t.Errorf("stalled %v", s)
	}
	if s := stalledOf("garbage"); s != 0 {
		t.Errorf("stalled %v of garbage", s)
	}
}
