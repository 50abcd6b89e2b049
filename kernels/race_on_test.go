//go:build race

package kernels

// underRace makes the tests of real dimensions and of many short calls smaller: the
// race detector looks for unordered accesses, which do not depend on the size.
const underRace = true
