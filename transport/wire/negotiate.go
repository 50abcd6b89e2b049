package wire

import (
	"fmt"
	"slices"

	"pdlink/transport"
)

// Terms are what two ends agreed on. Both compute them from the same two Hello
// messages, so nothing else has to be said.
type Terms struct {
	Epoch      uint32   // the server's
	Token      [16]byte // the server's
	MaxPayload int      // bytes, the smaller, at most MaxPayload of this package
	MaxMeta    int      // bytes, the smaller, at most transport.MaxMeta
	Lanes      int      // the smaller, at most MaxLanes
	Sum        string   // see Negotiate
	Features   []string // those that both have, in the client's order
}

// Negotiate computes the terms of a connection (section 4). The checksum is the
// first of the client's list that the server has too; "none" counts only when
// both ends list it first, so that one end alone cannot switch checking off.
// Errors: ErrIncompatible (another major version, no common checksum),
// ErrProtocol (the server gave no token).
func Negotiate(client, server *Hello) (Terms, error) {
	if client.Major != server.Major {
		return Terms{}, fmt.Errorf("%w: the client speaks protocol %d, the server protocol %d: upgrade the older end",
			transport.ErrIncompatible, client.Major, server.Major)
	}
	if server.Token == [16]byte{} {
		return Terms{}, Violation("hello of the server without a token")
	}
	sum, ok := commonSum(client.Sums, server.Sums)
	if !ok {
		return Terms{}, fmt.Errorf("%w: no common checksum: the client has %q, the server %q",
			transport.ErrIncompatible, client.Sums, server.Sums)
	}
	t := Terms{
		Epoch:      server.Epoch,
		Token:      server.Token,
		MaxPayload: int(min(client.MaxPayload, server.MaxPayload, MaxPayload)),
		MaxMeta:    int(min(client.MaxMeta, server.MaxMeta, transport.MaxMeta)),
		Lanes:      int(min(client.Lanes, server.Lanes, MaxLanes)),
		Sum:        sum,
	}
	for _, f := range client.Features {
		if slices.Contains(server.Features, f) && !slices.Contains(t.Features, f) {
			t.Features = append(t.Features, f)
		}
	}
	return t, nil
}

func commonSum(client, server []string) (string, bool) {
	for i, s := range client {
		if !slices.Contains(server, s) {
			continue
		}
		if s != transport.SumNone || i == 0 && server[0] == transport.SumNone {
			return s, true
		}
	}
	return "", false
}
