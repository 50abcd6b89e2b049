//go:build !linux

package main

// raplRoot is where counters would be.
const raplRoot = ""

// energy is a reading of the host's energy counters: there is none on this system.
type energy map[string]float64

// readEnergy is nil.
func readEnergy(string) energy { return nil }

// since is not known.
func (energy) since(energy) (joules float64, ok bool) { return 0, false }
