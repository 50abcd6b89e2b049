package flow

import (
	"github.com/cilium/ebpf/asm"
)

// The words of struct bpf_sock_ops (linux/bpf.h) that are of use, and its calls.
const (
	opsOp         = 0
	opsArg0       = 4 // of a round trip: its time in us, on kernels from 6.11 on
	opsRemotePort = 64
	opsLocalPort  = 68
	opsSRTT       = 96 // smoothed, in us/8

	opActive  = 4  // BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB
	opPassive = 5  // BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB
	opRTT     = 12 // BPF_SOCK_OPS_RTT_CB
	wantRTT   = 8  // BPF_SOCK_OPS_RTT_CB_FLAG
)

// TCP's header, by linux/tcp.h.
const (
	tcpFlags = 12 // two bytes with data offset and flags, two with the window
	tcpReset = 0x04 << 8
)

// onRetransmit is for tcp_retransmit_skb(sk, skb), on newer kernels with the error of
// an attempt that sent nothing.
func onRetransmit(m *maps, ports []uint16, o *offsets) asm.Instructions {
	p := &program{static: m}
	if o.tried {
		p.add(asm.LoadMem(asm.R2, asm.R1, 16, asm.Word), asm.JNE.Imm(asm.R2, 0, exit))
	}
	p.sock(ports, o)
	p.flow(true)
	p.one(atRetransmits)
	p.now()
	p.event(kindRetransmit)
	return p.end(0)
}

// onSegment is for tcp_probe(sk, skb), which is called for each segment that comes to
// a connection: it sees the window that the peer offers. A reset offers none.
func onSegment(m *maps, ports []uint16, o *offsets) asm.Instructions {
	p := &program{static: m}
	p.keepData(o)
	p.sock(ports, o)
	p.flow(true)

	idle := p.mark() // no softirq: the segment waited while the socket was in use
	p.add(put(asm.RFP, stackKey, 0))
	p.look(m.softirqs, stackKey)
	p.add(
		asm.JEq.Imm(asm.R0, 0, idle), asm.LoadMem(asm.R1, asm.R0, softirqAt, asm.DWord), asm.JEq.Imm(asm.R1, 0, idle),
		asm.StoreMem(asm.R0, softirqPorts, regPorts, asm.DWord))
	p.here(idle)

	p.add(asm.LoadMem(asm.R1, asm.RFP, stackSecond, asm.DWord), put(asm.RFP, stackRead, 0))
	p.read(stackRead, 4, asm.R1, tcpFlags)
	shut := p.mark()
	p.add(
		asm.JNE.Imm(asm.R0, 0, exit), // not read
		asm.LoadMem(asm.R1, asm.RFP, stackRead, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R1), asm.And.Imm(asm.R2, tcpReset), asm.JNE.Imm(asm.R2, 0, exit),
		asm.RSh.Imm(asm.R1, 16), asm.LoadMem(asm.R2, regFlow, atShut, asm.DWord), asm.JEq.Imm(asm.R1, 0, shut),
		asm.JEq.Imm(asm.R2, 0, exit)) // it was open and is
	p.now()
	p.add(
		asm.Mov.Reg(asm.R1, regNow), asm.LoadMem(asm.R2, regFlow, atShut, asm.DWord), asm.Sub.Reg(asm.R1, asm.R2),
		put(regFlow, atShut, 0))
	p.count(atClosed, asm.R1)
	p.event(kindOpens)
	p.add(asm.Ja.Label(exit))

	p.here(shut)
	p.add(asm.JNE.Imm(asm.R2, 0, exit)) // it was shut and is
	p.now()
	p.add(asm.StoreMem(regFlow, atShut, regNow, asm.DWord))
	p.one(atZeroWindows)
	p.event(kindShut)
	return p.end(0)
}

// onReady is for sk_data_ready(sk): enough bytes are there to wake a reader.
func onReady(m *maps, ports []uint16, o *offsets) asm.Instructions {
	p := &program{static: m}
	p.sock(ports, o)
	p.flow(false)
	p.add(asm.LoadMem(asm.R1, regFlow, atWaiting, asm.DWord), asm.JNE.Imm(asm.R1, 0, exit))
	p.now()
	p.add(asm.StoreMem(regFlow, atWaiting, regNow, asm.DWord))
	return p.end(0)
}

// onRead is for sock_recv_length(sk, length, …): a reader has taken bytes.
func onRead(m *maps, ports []uint16, o *offsets) asm.Instructions {
	p := &program{static: m}
	p.keepLength()
	p.sock(ports, o)
	p.flow(true)
	sample := p.mark()
	p.add(asm.LoadMem(asm.R1, regFlow, atWaiting, asm.DWord), asm.JEq.Imm(asm.R1, 0, sample))
	p.now()
	p.add(
		asm.LoadMem(asm.R1, regFlow, atWaiting, asm.DWord), put(regFlow, atWaiting, 0),
		asm.Sub.Reg(regNow, asm.R1))
	p.histogram(atWait)

	p.here(sample) // of the writer, whose ports are these the other way round
	p.add(
		asm.Mov.Reg(asm.R1, regPorts), asm.HostTo(asm.BE, asm.R1, asm.Word),
		put(asm.RFP, stackKey, 0), asm.StoreMem(asm.RFP, stackKey, asm.R1, asm.Word))
	p.look(m.samples, stackKey)
	p.add(
		asm.JEq.Imm(asm.R0, 0, exit), asm.Mov.Reg(regNow, asm.R0),
		asm.LoadMem(asm.R1, regNow, sampleLive, asm.DWord), asm.JEq.Imm(asm.R1, 0, exit))
	p.tcp(asm.R1, o.copiedSeq)
	p.add(
		asm.LoadMem(asm.R2, regNow, sampleSeq, asm.Word),
		asm.Sub.Reg32(asm.R1, asm.R2), asm.JSLE.Imm32(asm.R1, 0, exit), // not read yet
		put(regNow, sampleLive, 0), asm.LoadMem(asm.R3, asm.RFP, stackSecond, asm.Word),
		asm.JSGT.Reg32(asm.R1, asm.R3, exit), // it was read before, while it was being written
		asm.LoadMem(regNow, regNow, sampleAt, asm.DWord),
		asm.FnKtimeGetNs.Call(), asm.Sub.Reg(asm.R0, regNow), asm.Mov.Reg(regNow, asm.R0))
	p.histogram(atWriteToRead)
	return p.end(0)
}

// onWrite is for sock_send_length(sk, length, …): it begins a sample with the last byte
// that was written, where none is under way.
func onWrite(m *maps, ports []uint16, o *offsets) asm.Instructions {
	p := &program{static: m}
	p.keepLength()
	p.sock(ports, o)
	fresh := p.mark()
	p.look(m.samples, stackPorts)
	p.add(
		asm.JEq.Imm(asm.R0, 0, fresh),
		asm.LoadMem(asm.R1, asm.R0, sampleLive, asm.DWord), asm.JNE.Imm(asm.R1, 0, exit))
	p.here(fresh)
	p.tcp(regFlow, o.writeSeq)
	p.now()
	p.add(
		asm.Sub.Imm(regFlow, 1),
		asm.StoreMem(asm.RFP, stackSample+sampleSeq, regFlow, asm.DWord), put(asm.RFP, stackSample+sampleLive, 1),
		asm.StoreMem(asm.RFP, stackSample+sampleAt, regNow, asm.DWord),
		asm.LoadMapPtr(asm.R1, m.samples.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, stackPorts),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, stackSample),
		asm.Mov.Imm(asm.R4, 0), asm.FnMapUpdateElem.Call())
	return p.end(0)
}

// onSoftirq is for softirq_entry(vec). It measures one in softirqEvery.
func onSoftirq(m *maps, _ []uint16, _ *offsets) asm.Instructions {
	p := &program{static: m}
	p.add(
		asm.LoadMem(asm.R1, asm.R1, 0, asm.Word), asm.JNE.Imm(asm.R1, netRx, exit),
		put(asm.RFP, stackKey, 0))
	p.look(m.softirqs, stackKey)
	p.add(
		asm.JEq.Imm(asm.R0, 0, exit), asm.Mov.Reg(regFlow, asm.R0),
		asm.LoadMem(asm.R1, regFlow, softirqCount, asm.DWord), asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(regFlow, softirqCount, asm.R1, asm.DWord),
		asm.And.Imm(asm.R1, softirqEvery-1), asm.JNE.Imm(asm.R1, 0, exit))
	p.now()
	p.add(asm.StoreMem(regFlow, softirqAt, regNow, asm.DWord), put(regFlow, softirqPorts, 0))
	return p.end(0)
}

// onSoftirqEnd is for softirq_exit(vec).
func onSoftirqEnd(m *maps, _ []uint16, _ *offsets) asm.Instructions {
	p := &program{static: m}
	p.add(
		asm.LoadMem(asm.R1, asm.R1, 0, asm.Word), asm.JNE.Imm(asm.R1, netRx, exit),
		put(asm.RFP, stackKey, 0))
	p.look(m.softirqs, stackKey)
	p.add(
		asm.JEq.Imm(asm.R0, 0, exit), asm.LoadMem(regNow, asm.R0, softirqAt, asm.DWord), asm.JEq.Imm(regNow, 0, exit),
		put(asm.R0, softirqAt, 0), asm.LoadMem(regPorts, asm.R0, softirqPorts, asm.DWord),
		asm.JEq.Imm(regPorts, 0, exit), put(asm.RFP, stackPorts, 0),
		asm.StoreMem(asm.RFP, stackPorts, regPorts, asm.Word))
	p.flow(false)
	p.add(asm.FnKtimeGetNs.Call(), asm.Sub.Reg(asm.R0, regNow))
	p.count(atSoftirq, asm.R0)
	return p.end(0)
}

// onSockOps is called by the connections of a cgroup: it asks those on the ports for
// their round trips, and counts them.
func onSockOps(m *maps, ports []uint16, _ *offsets) asm.Instructions {
	p := &program{static: m}
	ask, smoothed := p.mark(), p.mark()
	p.add(
		asm.Mov.Reg(regSock, asm.R1),
		asm.LoadMem(regPorts, regSock, opsRemotePort, asm.Word), asm.RSh.Imm(regPorts, 16),
		asm.LoadMem(asm.R2, regSock, opsLocalPort, asm.Word), asm.LSh.Imm(asm.R2, 16), asm.Or.Reg(regPorts, asm.R2),
		put(asm.RFP, stackPorts, 0), asm.StoreMem(asm.RFP, stackPorts, regPorts, asm.Word))
	p.onPorts(ports)
	p.add(
		asm.LoadMem(asm.R1, regSock, opsOp, asm.Word),
		asm.JEq.Imm(asm.R1, opActive, ask), asm.JEq.Imm(asm.R1, opPassive, ask), asm.JNE.Imm(asm.R1, opRTT, exit))
	p.flow(true)
	have := p.mark()
	p.add(
		asm.LoadMem(regNow, regSock, opsArg0, asm.Word), asm.JEq.Imm(regNow, 0, smoothed), asm.Ja.Label(have))
	p.here(smoothed)
	p.add(asm.LoadMem(regNow, regSock, opsSRTT, asm.Word), asm.RSh.Imm(regNow, 3))
	p.here(have)
	p.add(asm.Mul.Imm(regNow, 1000))
	p.histogram(atRTT)
	p.add(asm.Ja.Label(exit))
	p.here(ask)
	p.add(asm.Mov.Reg(asm.R1, regSock), asm.Mov.Imm(asm.R2, wantRTT), asm.FnSockOpsCbFlagsSet.Call())
	return p.end(1)
}
