//go:build rdmavm

package main

import "testing"

// TestVMRefuse: what the faults do to a queue pair ends it, and the connection with it.
func TestVMRefuse(t *testing.T) {
	loaded(t)
	slow(t)
	e := &endurance{idle: resources(t), links: map[string]int{}}
	e.a, e.b = paired(t)
	e.want = reference(t, made()...)
	e.endure(t, &fault{name: "the queue pair fails", do: refuse, after: 0.2, alone: true})
	if e.reconnects == 0 {
		t.Errorf("the connection was not lost\n%s", shell(t, "dmesg | tail -n 20; grep . /sys/class/infiniband/*/ports/1/hw_counters/*"))
	}
}
