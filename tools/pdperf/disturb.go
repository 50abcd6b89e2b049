package main

import "fmt"

// What makes a measurement disturbed. Below these the figures of a repetition differ by
// less than those of two that nothing disturbed.
const (
	foreignCores   = 0.15 // busy with other programs
	foreignShare   = 0.05 // of all cores
	stealShare     = 0.02 // of all cores, taken by the hypervisor
	readyShare     = 0.10 // of the window, in which the ends' own threads waited for a core
	disturbSeconds = 0.5  // windows shorter than this have too few ticks of the clock
)

// disturbances say what besides the link had a part in the figures, one sentence each.
func (r *result) disturbances() (list []string) {
	if r.Seconds < disturbSeconds {
		return nil
	}
	own := map[string]float64{}
	own[r.Sender.Host.Boot] += r.Sender.CPU.seconds() + r.Both.seconds()
	own[r.Receiver.Host.Boot] += r.Receiver.CPU.seconds()
	shared := r.Sender.Host.Boot != "" && r.Sender.Host.Boot == r.Receiver.Host.Boot
	for _, e := range []struct {
		name string
		end  *endResult
	}{{"sender's host", &r.Sender}, {"receiver's host", &r.Receiver}} {
		l, cores := e.end.Load, float64(e.end.Cores)
		if l == nil {
			continue
		}
		name := e.name
		if shared {
			name = "this host"
		}
		if foreign := (l.Work - own[e.end.Host.Boot]) / r.Seconds; foreign > max(foreignCores, foreignShare*cores) {
			list = append(list, fmt.Sprintf("other programs kept %.2f of the %d cores of %s busy", foreign, e.end.Cores, name))
		}
		if stolen := l.Steal / r.Seconds / cores; stolen > stealShare {
			list = append(list, fmt.Sprintf("the hypervisor took %.0f %% of the cores of %s away", 100*stolen, name))
		}
		if shared {
			break // it is the same
		}
	}
	for _, e := range []struct {
		name string
		cpu  *cpuUse
	}{{"sender", r.Sender.CPU}, {"receiver", r.Receiver.CPU}, {"run", r.Both}} {
		if e.cpu != nil && e.cpu.Ready/r.Seconds > readyShare {
			list = append(list, fmt.Sprintf("the %s's own threads waited for a core, %.2f s of %.2f s summed over them (%d forced switches)",
				e.name, e.cpu.Ready, r.Seconds, e.cpu.Involuntary))
		}
	}
	return list
}
