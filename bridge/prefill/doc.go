// Package prefill is the sidecar's side of a prefill engine: it shares a ring of
// slots with the engine's worker processes and sends what they put there.
//
// A [Server] owns the ring, memory without a name that workers map, and the
// socket over which they get it and say what they did (PROTOCOL.md). The ring's
// slots are those of [Server.Ring], which the connections to the decode host send
// from, so that the bytes that an engine wrote go out from where they are. A
// [Transfer] is one prompt: what its workers commit is sent as it comes, finished
// pieces of blocks as they are, rows after the Go kernels have made blocks of them.
//
// The engine never waits longer than it was told. What finds no slot in time, or
// no memory on the host, is dropped from the end of the transfer: it is sealed at a
// block, and what is whole before that block is still usable.
//
// The ring outlives the sidecar, since workers keep it. A restarted one is handed the
// ring back, and what was committed and still matches its checksums is sent again.
//
// A [Service] takes the prompts that decode hosts ask for over the connection that a
// [Keeper] keeps (package calls), has the engine read them, and answers how their
// transfers ended. Everything that the network sees goes over that connection. Where the
// engine's workers are on several hosts, each has a Service that sends its part of every
// transfer, and one of them has the engine.
//
// There is shared memory of this kind on Linux only; elsewhere [Listen] returns
// [ErrUnavailable].
package prefill
