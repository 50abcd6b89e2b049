// Package fakeverbs is verbs in plain Go: a network of hosts within the process, whose
// devices behave like those of real providers, above all in what they refuse. A
// [Personality] has one provider's limits; [Net] and [Host] do what goes wrong in real
// life: completions that fail, receives that are missing, odd orders, ports that flap,
// peers that vanish, objects that cannot be destroyed.
//
// Time is package time's, and every random choice comes from the network's seed, drawn
// for each queue pair by itself. So within a bubble of testing/synctest, with a
// [Net.Latency] that is not zero, a seed repeats what happened.
//
// Nothing here is fast. [Null] is a provider that moves no bytes at all, to measure
// what its callers cost.
package fakeverbs
