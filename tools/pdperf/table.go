package main

import (
	"fmt"
	"math"
	"text/tabwriter"
)

// printResult writes a result for people.
func printResult(io streams, r *result) {
	tw := tabwriter.NewWriter(io.out, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(tw, "  %s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	remote := r.Remote
	if r.Peer != "" {
		remote += " (" + r.Peer + ")"
	}
	io.printf("%s %s over %s, %s to %s\n", r.Program, r.Direction, r.Link, r.Local, remote)
	row("goodput", "%.3f GB/s: %d blocks of %s, %.3f GB in %.3f s, first byte to last acknowledgement",
		r.Goodput, r.Blocks, sizeText(r.BlockBytes), float64(r.Bytes)/1e9, r.Seconds)
	if r.Direction == both {
		row("", "%.3f GB/s pushed and %.3f pulled at the same time", r.Push, r.Pull)
	}
	if r.PerToken > 0 {
		row("model", "%s: %.4f ms a token of this link's time", r.Model, r.PerToken)
	}
	row("block time", "%s", timesText(r))
	if r.Line > 0 {
		row("line", "%.3f of the %.3f GB/s that it carries: %s", max(r.Push, r.Pull)/r.Line, r.Line, r.LineOf)
	}
	if r.Limited != nil {
		row("limited by", "%s: %s", r.Limited.Cause, r.Limited.Evidence)
	}
	if r.Watched != nil {
		row("watched", "%s", r.Watched.text())
	}
	row("integrity", "%s", integrityText(r))
	row("frames", "%d of up to %s on %s%s", r.Frames, sizeText(r.FrameBytes), lanesText(r.Lanes), sealText(r.Sealed))
	if r.Both != nil {
		row("CPU", "both ends in one process: %s", cpuText(r.Both))
	} else {
		row("CPU", "sender %s", cpuText(r.Sender.CPU))
		row("", "receiver %s", cpuText(r.Receiver.CPU))
	}
	row("memory", "sender sent from %d of %d buffers of %s, receiver wrote to %d of %d of %s",
		r.Sender.Buffers, r.Sender.Owned, sizeText(r.Sender.Buffer), r.Receiver.Buffers, r.Receiver.Owned, sizeText(r.Receiver.Buffer))
	row("hosts", "%s; %.1f s of warm-up before", hostsText(r), r.Warmup)
	if n := r.Sender.NIC; n != nil {
		row("interface", "%s", n.text())
	}
	for _, text := range r.Disturbed {
		row("DISTURBED", "%s", text)
	}
	if r.Interrupted {
		row("INTERRUPTED", "the time was cut short")
	}
	for _, e := range []struct {
		name  string
		ports []portFacts
	}{{"sender's ports", r.Sender.Ports}, {"receiver's", r.Receiver.Ports}} {
		if len(e.ports) > 0 {
			row(e.name, "%s", portsText(e.ports))
		}
	}
	tw.Flush() //nolint:errcheck // nobody is left to tell
	printSockets(io, "sender's sockets", r.Sender.Sockets)
	printSockets(io, "receiver's sockets", r.Receiver.Sockets)
}

// timesText is the block times of a result, without the percentiles that so few blocks do
// not have.
func timesText(r *result) string {
	text, missing := "", ""
	for _, p := range []float64{50, 90, 99, 99.9} {
		ms := r.blockMs(p)
		if math.IsNaN(ms) {
			missing = fmt.Sprintf(" (too few blocks for p%g: %d)", p, r.timed())
			break
		}
		text += fmt.Sprintf("p%g %.2f, ", p, ms)
	}
	return fmt.Sprintf("%smax %.2f ms%s; %d in flight", text, r.BlockMs.Max, missing, r.InFlight)
}

func lanesText(n int) string {
	if n == 1 {
		return "1 lane"
	}
	return fmt.Sprintf("%d lanes", n)
}

func sealText(sealed bool) string {
	if sealed {
		return ", sealed"
	}
	return ", in clear"
}

func integrityText(r *result) string {
	if r.Sum == "none" {
		return "NOT VERIFIED: no checksum"
	}
	made := "the sender computed them while sending"
	if r.Presummed {
		made = "made once beforehand"
	}
	text := fmt.Sprintf("%.3f GB verified by %s, %s; %d bad pieces", float64(r.Verified)/1e9, r.Sum, made, r.Bad)
	if r.Resent > 0 {
		text += fmt.Sprintf(", %d bytes sent again", r.Resent)
	}
	return text
}

func cpuText(c *cpuUse) string {
	if c == nil {
		return "not known on this system"
	}
	text := fmt.Sprintf("%.3f s/GB (%.2f user, %.2f system; %d switches, %d of them forced",
		c.PerGB, c.User, c.System, c.Voluntary+c.Involuntary, c.Involuntary)
	if c.Reads > 0 {
		text += fmt.Sprintf("; %.0f reads a GB", c.ReadsPerGB)
	}
	return text + ")"
}

// printSockets writes what the kernel said.
func printSockets(io streams, title string, all []socketFacts) {
	if len(all) == 0 {
		return
	}
	io.printf("  %s, as the kernel has them\n", title)
	tw := tabwriter.NewWriter(io.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "\tMB out\tMB in\tretrans\tcc\tmss\tsndbuf\trcvbuf\trcvlowat\tnodelay\tkeepalive\trtt us\tcwnd\tbusy s\twindow-limited s\tbuffer-limited s\t")
	for _, s := range all {
		fmt.Fprintf(tw, "\t%.1f\t%.1f\t%d\t%s\t%d\t%d\t%d\t%d\t%s\t%s\t%d\t%d\t%.2f\t%.2f\t%.2f\t\n",
			float64(s.Sent)/1e6, float64(s.Received)/1e6, s.Retransmits, s.Congestion, s.MSS, s.SendBuffer, s.RecvBuffer, s.RecvLowWater,
			yesNo(s.NoDelay), yesNo(s.KeepAlive), s.RTTMicros, s.Window, s.Busy, s.WindowLimited, s.BufferLimited)
	}
	tw.Flush() //nolint:errcheck // nobody is left to tell
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
