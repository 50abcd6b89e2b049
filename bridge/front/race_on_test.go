//go:build race

package front

// underRace makes the test of many requests smaller: the race detector looks for
// unordered accesses, which do not depend on their number.
const underRace = true
