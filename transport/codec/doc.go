// Package codec makes payloads smaller without losing a bit, for links that are
// slower than the cores at their ends: [LZ4] for anything that repeats itself, and
// [BF16] for numbers of 16 bits, whose exponents take few values while their
// mantissas are noise. It also has the rule when that pays ([Governor]). It knows
// nothing of frames or sockets. The coded forms are section 12 of
// transport/wire/PROTOCOL.md.
package codec
