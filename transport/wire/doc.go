// Package wire is the form in which two ends of a connection speak: frames that
// carry pieces of blocks, and control messages. It encodes and decodes and does
// nothing else: no input or output, no state of a transfer.
//
// PROTOCOL.md beside this file is the specification; section numbers in comments
// refer to it. Numbers are little-endian. The golden files in testdata hold the
// bytes.
//
// Decoders are total: whatever the bytes, they return a value or an error that
// Is [transport.ErrProtocol], they never panic, and what they allocate is
// bounded by the bytes that are really there. Encoders refuse what a decoder
// would refuse, with [transport.ErrTooLarge] or [transport.ErrInvalid].
package wire
