package keys

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strings"
	"time"
)

// certificate wraps an identity in what TLS wants to carry it in. Only the key in
// it means anything; no end looks at names, dates or who signed it.
func certificate(id *Identity) (tls.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "pdlink"},
		// RFC 5280's "no date": hosts' clocks may be wrong.
		NotBefore:   time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC),
		NotAfter:    time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, id.private.Public(), id.private)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("keys: make the certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: id.private}, nil
}

// ServerConfig is for the end that accepts: TLS 1.3, this host's key, and a peer
// that is pinned when the handshake ends. The caller asks Admit afterwards, for
// the peer's name and to learn of its revocation. The handshake fails with an
// error that Is ErrUnknownPeer for everybody else. The caller owns the result.
func (s *Store) ServerConfig() *tls.Config {
	c := s.config(func(k PublicKey) error {
		_, err := s.Admit(k)
		return err
	})
	c.ClientAuth = tls.RequireAnyClientCert // checked by key, not by chain
	return c
}

// ClientConfig is for the end that dials. With a name only that peer will do,
// with "" any pinned one. Errors: ErrUnknownPeer for a name that is not pinned,
// here and from the handshake when the other end is not who it should be. The
// server's verdict on this host's own key comes after the client's handshake, as
// an error of the first read; see Refused. The caller owns the result.
func (s *Store) ClientConfig(name string) (*tls.Config, error) {
	if name != "" {
		if _, err := s.byName(name); err != nil {
			return nil, err
		}
	}
	c := s.config(func(k PublicKey) error {
		a, err := s.Admit(k)
		if err == nil && name != "" && a.Peer.Name != name {
			return fmt.Errorf("%w: want %s, this is %s", ErrUnknownPeer, name, a.Peer.Name)
		}
		return err
	})
	c.InsecureSkipVerify = true // no chain and no host name; VerifyConnection checks the key
	return c, nil
}

// config is what both ends have in common. check decides on the peer's key.
func (s *Store) config(check func(PublicKey) error) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		MaxVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{s.cert},
		NextProtos:             []string{ALPN},
		SessionTicketsDisabled: true, // a resumed session would skip the peer's proof
		VerifyConnection: func(cs tls.ConnectionState) error {
			k, err := PeerKey(cs)
			if err != nil {
				return err
			}
			return check(k)
		},
	}
}

// PeerKey returns the key that the other end of a TLS session has proven to hold.
// It fails, with an error that Is ErrUnknownPeer, on a session that is not as the
// configurations of this package make it.
func PeerKey(cs tls.ConnectionState) (PublicKey, error) {
	bad := func(why error) (PublicKey, error) { return PublicKey{}, fmt.Errorf("%w: %w", ErrUnknownPeer, why) }
	switch {
	case cs.Version != tls.VersionTLS13:
		return bad(fmt.Errorf("%s, want TLS 1.3", tls.VersionName(cs.Version)))
	case cs.NegotiatedProtocol != ALPN:
		return bad(fmt.Errorf("the peer speaks protocol %.20q, want %s", cs.NegotiatedProtocol, ALPN))
	case len(cs.PeerCertificates) == 0:
		return bad(errors.New("the peer showed no key"))
	}
	key, ok := cs.PeerCertificates[0].PublicKey.(ed25519.PublicKey)
	if !ok || len(key) != ed25519.PublicKeySize {
		return bad(fmt.Errorf("a key of type %T, want Ed25519", cs.PeerCertificates[0].PublicKey))
	}
	return PublicKey(key), nil
}

// Refused says whether err, of a TLS connection, is the other end's verdict that
// it does not know this host's key: somebody has to run `pdlink keys pair` there.
func Refused(err error) bool {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "remote error" {
		return false
	}
	// The alert that crypto/tls sends when VerifyConnection fails; its type is
	// not exported.
	return strings.HasSuffix(op.Err.Error(), "bad certificate")
}
