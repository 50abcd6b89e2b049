package flow

import (
	"math/bits"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// Registers that live through calls, and what the programs keep in them.
const (
	regSock  = asm.R6 // struct sock *, or the context of sock_ops
	regPorts = asm.R7 // remote port in network order, then the local one, as struct sock has them
	regFlow  = asm.R8 // what is kept of the flow
	regNow   = asm.R9 // time, or what it makes
)

// Places on the stack.
const (
	stackPorts  = -8
	stackKey    = -16
	stackRead   = -24
	stackSecond = -32 // what is kept of the second argument
	stackSample = -56 // sampleSize bytes
)

// exit is where every program ends.
const exit = "exit"

// program puts instructions together. It belongs to one goroutine.
type program struct {
	code   asm.Instructions
	marks  int
	label  string // of the next instruction
	static *maps
}

// add appends instructions.
func (p *program) add(list ...asm.Instruction) {
	if p.label != "" && len(list) > 0 {
		list[0], p.label = list[0].WithSymbol(p.label), ""
	}
	p.code = append(p.code, list...)
}

// mark is a new name for a place.
func (p *program) mark() string {
	p.marks++
	return "l" + strconv.Itoa(p.marks)
}

// here names the next instruction. Two names for one place need an instruction between
// them, which does nothing.
func (p *program) here(name string) {
	if p.label != "" {
		p.add(asm.Mov.Reg(asm.R1, asm.R1))
	}
	p.label = name
}

// end returns the instructions of a program that returns result.
func (p *program) end(result int32) asm.Instructions {
	p.here(exit)
	p.add(asm.Mov.Imm(asm.R0, result), asm.Return())
	return p.code
}

// now reads the monotonic clock into regNow.
func (p *program) now() { p.add(asm.FnKtimeGetNs.Call(), asm.Mov.Reg(regNow, asm.R0)) }

// read copies n bytes of kernel memory from base+offset to the stack, zeros where it
// cannot be read.
func (p *program) read(to int16, n int32, base asm.Register, offset uint32) {
	p.add(
		asm.Mov.Reg(asm.R3, base), asm.Add.Imm(asm.R3, int32(offset)),
		asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, int32(to)),
		asm.Mov.Imm(asm.R2, n), asm.FnProbeReadKernel.Call())
}

// look puts the value of the key on the stack into R0, or a null pointer.
func (p *program) look(m *ebpf.Map, key int16) {
	p.add(
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, int32(key)),
		asm.FnMapLookupElem.Call())
}

// sock takes the socket from the first argument of a tracepoint and leaves for exit
// unless it is on one of the ports. The kernel knows the arguments' types, so its
// memory is read like one's own.
func (p *program) sock(ports []uint16, o *offsets) {
	p.add(
		asm.LoadMem(regSock, asm.R1, 0, asm.DWord), asm.LoadMem(regPorts, regSock, int16(o.ports), asm.Word),
		asm.StoreMem(asm.RFP, stackPorts, regPorts, asm.DWord))
	p.onPorts(ports)
}

// keepData puts the data of the packet that is the second argument to stackSecond. It
// comes before sock.
func (p *program) keepData(o *offsets) {
	p.add(
		asm.LoadMem(asm.R2, asm.R1, 8, asm.DWord), asm.LoadMem(asm.R2, asm.R2, int16(o.skbData), asm.DWord),
		asm.StoreMem(asm.RFP, stackSecond, asm.R2, asm.DWord))
}

// keepLength puts how many bytes were moved, the second argument, to stackSecond, and
// leaves for exit where none were. It comes before sock.
func (p *program) keepLength() {
	p.add(
		asm.LoadMem(asm.R2, asm.R1, 8, asm.Word), asm.JSLE.Imm32(asm.R2, 0, exit),
		asm.StoreMem(asm.RFP, stackSecond, asm.R2, asm.DWord))
}

// tcp reads a word of struct tcp_sock into a register, other than R0.
func (p *program) tcp(to asm.Register, offset uint32) {
	p.add(
		asm.Mov.Reg(asm.R1, regSock), asm.FnSkcToTcpSock.Call(), asm.JEq.Imm(asm.R0, 0, exit),
		asm.LoadMem(to, asm.R0, int16(offset), asm.Word))
}

// onPorts leaves for exit unless regPorts has one of the ports.
func (p *program) onPorts(ports []uint16) {
	hit := p.mark()
	p.add(
		asm.Mov.Reg(asm.R1, regPorts), asm.RSh.Imm(asm.R1, 16),
		asm.Mov.Reg(asm.R2, regPorts), asm.And.Imm(asm.R2, 0xffff))
	for _, port := range ports {
		p.add(asm.JEq.Imm(asm.R1, int32(port), hit), asm.JEq.Imm(asm.R2, int32(bits.ReverseBytes16(port)), hit))
	}
	p.add(asm.Ja.Label(exit))
	p.here(hit)
}

// flow puts what is kept of the flow on stackPorts into regFlow, and makes it where it
// is new and create says so; else it leaves for exit.
func (p *program) flow(create bool) {
	have := p.mark()
	p.look(p.static.flows, stackPorts)
	if create {
		p.add(asm.JNE.Imm(asm.R0, 0, have), put(asm.RFP, stackKey, 0))
		p.look(p.static.empty, stackKey)
		p.add(
			asm.JEq.Imm(asm.R0, 0, exit),
			asm.LoadMapPtr(asm.R1, p.static.flows.FD()),
			asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, stackPorts),
			asm.Mov.Reg(asm.R3, asm.R0), asm.Mov.Imm(asm.R4, 1), // BPF_NOEXIST
			asm.FnMapUpdateElem.Call())
		p.look(p.static.flows, stackPorts)
	}
	p.add(asm.JEq.Imm(asm.R0, 0, exit))
	p.here(have)
	p.add(asm.Mov.Reg(regFlow, asm.R0))
}

// count adds a register to a word of the flow.
func (p *program) count(at int16, n asm.Register) {
	p.add(asm.AddAtomic.Mem(regFlow, n, asm.DWord, at))
}

// one adds one to a word of the flow.
func (p *program) one(at int16) {
	p.add(asm.Mov.Imm(asm.R1, 1))
	p.count(at, asm.R1)
}

// histogram counts regNow, in nanoseconds, in the histogram of the flow at an offset.
func (p *program) histogram(at int16) {
	done, fits := p.mark(), p.mark()
	p.add(
		asm.Mov.Reg(asm.R1, regNow), asm.Div.Imm(asm.R1, 1000),
		asm.Mov.Imm(asm.R2, 0), asm.JEq.Imm(asm.R1, 0, done), asm.Mov.Imm(asm.R2, 1))
	for _, shift := range []int32{16, 8, 4, 2, 1} { // the position of the highest bit
		skip := p.mark()
		p.add(asm.JLT.Imm(asm.R1, 1<<shift, skip), asm.RSh.Imm(asm.R1, shift), asm.Add.Imm(asm.R2, shift))
		p.here(skip)
	}
	p.add(asm.Mov.Reg(asm.R1, asm.R1)) // two names here
	p.here(done)
	p.add(asm.JLT.Imm(asm.R2, HistogramBuckets, fits), asm.Mov.Imm(asm.R2, HistogramBuckets-1))
	p.here(fits)
	p.add(
		asm.LSh.Imm(asm.R2, 3), asm.Mov.Reg(asm.R3, regFlow), asm.Add.Reg(asm.R3, asm.R2),
		asm.Mov.Imm(asm.R1, 1), asm.AddAtomic.Mem(asm.R3, asm.R1, asm.DWord, at))
}

// event notes that something happened at regNow. The socket is locked where the
// programs call it: no other core notes something of the same flow.
func (p *program) event(kind int64) {
	lost, done := p.mark(), p.mark()
	p.add(
		asm.LoadMem(asm.R1, regFlow, atEventCount, asm.DWord), asm.JGE.Imm(asm.R1, maxEvents, lost),
		asm.Mov.Reg(asm.R2, asm.R1), asm.LSh.Imm(asm.R2, 4), // eventSize
		asm.Mov.Reg(asm.R3, regFlow), asm.Add.Reg(asm.R3, asm.R2),
		asm.StoreMem(asm.R3, atEvents, regNow, asm.DWord), put(asm.R3, atEvents+8, kind),
		asm.Add.Imm(asm.R1, 1), asm.StoreMem(regFlow, atEventCount, asm.R1, asm.DWord), asm.Ja.Label(done))
	p.here(lost)
	p.one(atEventsLost)
	p.here(done)
}

// put stores a number in eight bytes of memory; package asm refuses that width, the
// kernel does not.
func put(to asm.Register, offset int16, n int64) asm.Instruction {
	return asm.Instruction{OpCode: asm.StoreImmOp(asm.DWord), Dst: to, Offset: offset, Constant: n}
}
