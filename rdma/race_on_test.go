//go:build race

package rdma

// slowdown is how much longer things may take under the race detector.
const slowdown = 20
