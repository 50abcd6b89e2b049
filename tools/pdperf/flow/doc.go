// Package flow asks the kernel what happened to TCP connections, for whoever
// wants to know why one was slow. It moves no bytes.
//
// Four sources, cheapest first:
//
//   - [Read], [ReadConn] and [Sockets] (of this process, by address): the counters of
//     a socket ([Counters]), two readings of which make a difference ([Counters.Since]), and the sockets of a
//     connection with several lanes a sum ([Sum]). Linux has all of them, macOS
//     some; on other systems there is only [ErrUnknown].
//   - [Sample]: how often the bytes of a connection waited for their reader.
//   - [ReadCPU]: processor time of this process, and the time that its threads were
//     ready to run and did not get a core (Linux).
//   - [Watch]: programs in the kernel (eBPF, Linux, root) that see each event of the
//     connections on given ports: retransmits and closed windows with their times,
//     distributions of round trips, of the time that bytes wait for their reader, of
//     the time between the sender's write and the receiver's read on one host, and
//     the time in receive softirqs. Where it may not, [ErrPrivilege]; where the
//     kernel lacks one of them, a note in the [Report] and the others work.
//
// Usage:
//
//	w, err := flow.Watch(flow.WatchOptions{Ports: []uint16{port}}) // before the connection is made
//	before, _ := flow.ReadConn(conn)
//	... // transfer
//	after, _ := flow.ReadConn(conn)
//	delta := after.Since(before)
//	report := w.Report()
//	w.Close()
package flow
