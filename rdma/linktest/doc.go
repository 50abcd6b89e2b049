// Package linktest has the tests of the link over RDMA that need a whole link: the
// control connection of package tcp and the lanes of package rdma on verbs in plain
// Go. They are apart because the two do not know each other.
package linktest
