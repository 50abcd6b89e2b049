//go:build !race

package kernels

const underRace = false
