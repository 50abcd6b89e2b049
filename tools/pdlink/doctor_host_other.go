//go:build !linux

package main

import "net"

// wireless reports whether an interface has no cable: not known here.
func wireless(string) bool { return false }

// linkSpeed is an interface's speed: not known here.
func linkSpeed(string) (mbit int, known bool) { return 0, false }

// pathMTU is what the kernel knows of a connection's way: nothing here.
func pathMTU(net.Conn) int { return 0 }

// lockLimits looks whether memory may be locked: not known here.
func lockLimits(int64) []finding { return nil }

// listAddresses is the command that lists this host's addresses.
const listAddresses = "ifconfig"

// whoHas is the command that shows who listens on a port.
func whoHas(port string) string { return "sudo lsof -nP -iTCP:" + port + " -sTCP:LISTEN" }
