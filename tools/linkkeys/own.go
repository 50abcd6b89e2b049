package linkkeys

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"pdlink/transport/keys"
	"pdlink/transport/wire"
)

// ErrOtherKey is returned by Choice.Meet for a listener that uses keys, and not these.
var ErrOtherKey = errors.New("linkkeys: another key")

// Meet asks the listener at an address, for which network is "tcp" or "unix", whether it
// has this host's own key: it is then a program of this host. No data is sent, and the
// listener knows by Own who asked. c has keys. The context bounds it. Errors: ErrOtherKey,
// keys.ErrNoKeys, and others from one that is no pdlink.
func (c Choice) Meet(ctx context.Context, network, addr string) error {
	conf, err := c.Store.ClientConfig("")
	if err != nil {
		return err
	}
	var met keys.PublicKey
	conf.VerifyConnection = func(cs tls.ConnectionState) (err error) {
		met, err = keys.PeerKey(cs) // any will do: nothing is said to it
		return err
	}
	sock, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return err
	}
	defer sock.Close()
	stop := context.AfterFunc(ctx, func() { sock.Close() }) //nolint:errcheck // it ends the wait
	defer stop()
	t := tls.Client(sock, conf)
	var inClear tls.RecordHeaderError
	switch err := t.HandshakeContext(ctx); {
	case errors.As(err, &inClear) && inClear.RecordHeader[4] == byte(wire.TypeBye): // a message that says so
		return keys.ErrNoKeys
	case ctx.Err() != nil: // the socket was closed for it, whatever that makes of the handshake
		return fmt.Errorf("handshake: %w", ctx.Err())
	case err != nil:
		return fmt.Errorf("handshake: %w", err)
	}
	if met != c.Store.Public() {
		return fmt.Errorf("%w: %s", ErrOtherKey, met.Short())
	}
	t.Read(make([]byte, 1)) //nolint:errcheck // that it does not know itself, which has to come before the socket goes
	return ctx.Err()
}

// Own reports that the other end, which a listener turned away or a dialler would not talk
// to, has proven to hold this host's own key, which is no peer's. From this host that is
// Meet, most likely; from another one it is a copy of this host's key.
func (c Choice) Own(err error) bool {
	var unknown *keys.UnknownKeyError
	return c.Store != nil && errors.As(err, &unknown) && unknown.Key == c.Store.Public()
}
