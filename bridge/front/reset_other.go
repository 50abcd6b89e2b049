//go:build !unix

package front

import "net"

// isReset is not known here.
func isReset(error) bool { return false }

// wasReset is not known here.
func wasReset(net.Conn) bool { return false }
