package tcp

import "net"

// kind is what differs between the sockets of the two links.
type kind interface {
	// check looks at the ends of a socket and sets the link's options on it.
	check(c socket, o *Options) error
	// ends are the link's name and this end's of a connection, for its facts.
	ends(c net.Conn) (link, local string)
}

// tcpSockets are TCP's.
type tcpSockets struct{}

func (tcpSockets) check(c socket, o *Options) error {
	if o.Keys == nil {
		if err := checkSocket(c); err != nil {
			return err
		}
	}
	return tune(c, o.Congestion)
}

func (tcpSockets) ends(c net.Conn) (link, local string) { return "tcp", c.LocalAddr().String() }

// unixSockets have a user at each end, and nothing to be tuned.
type unixSockets struct{}

func (unixSockets) check(c socket, o *Options) error {
	if o.Keys == nil {
		return checkUser(c)
	}
	return nil
}

func (unixSockets) ends(c net.Conn) (link, local string) {
	return "unix", endName(c.LocalAddr(), c.RemoteAddr())
}
