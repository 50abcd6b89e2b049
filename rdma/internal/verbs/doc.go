// Package verbs is RDMA verbs without cgo and without headers: queue pairs,
// completion queues and registered memory of a device that the host has. Load opens
// the host's library (libibverbs on Linux, librdma on macOS) at run time; every
// other way to the same interfaces, such as verbs in plain Go for tests, is a
// Provider too, and a link cannot tell which it got.
//
// The interfaces are the common part of what providers of verbs offer. Constants
// have the values of the C headers (rdma-core, infiniband/verbs.h), so that an
// implementation copies numbers. Nothing here chooses a device, a mode or a limit:
// what a provider refuses comes back as an error, and the caller negotiates.
//
// # Memory
//
// A work request names memory by address. It must lie outside the Go heap (Map, a
// transport.Ring), be registered with the PD of the queue pair, and stay mapped
// until its work request completed and its MR was deregistered. No call keeps a
// pointer to Go memory after it returned.
//
// # Teardown
//
// Close of an object that others still use fails with ErrBusy and changes nothing:
// close QP, then MR and CQ, then Channel, then PD, then Device. A provider may refuse
// for longer (work is outstanding, the card is in doubt): try again, and when that
// does not help keep the memory mapped for good, since the device may still write
// there. After Close returned nil it is idempotent, and all other methods return
// ErrClosed.
package verbs
