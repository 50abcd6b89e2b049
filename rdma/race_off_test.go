//go:build !race

package rdma

const slowdown = 1
