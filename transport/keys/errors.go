package keys

import (
	"errors"
	"fmt"
)

// Sentinels, one for each decision that a caller can take. They are wrapped with
// the file and what to do; test with errors.Is.
var (
	// ErrNoIdentity is returned when the directory has no private key yet: make
	// one.
	ErrNoIdentity = errors.New("keys: no private key")

	// ErrIdentityExists is returned when a private key would be overwritten.
	ErrIdentityExists = errors.New("keys: there is a private key already")

	// ErrUnknownPeer is returned when a key or a name is not in the peers file:
	// pair the two hosts, or refuse the connection.
	ErrUnknownPeer = errors.New("keys: unknown peer")

	// ErrRefused is returned when the other end does not know this host's key:
	// pair the two hosts there.
	ErrRefused = errors.New("keys: the other end does not know this host's key")

	// ErrNoKeys is returned when the other end uses no keys and this one does:
	// give it some, and pair the two hosts.
	ErrNoKeys = errors.New("keys: the other end uses no keys")

	// ErrKeysWanted is returned when the other end takes only peers with keys and
	// this one has none: make some, pair the two hosts, and use them.
	ErrKeysWanted = errors.New("keys: the other end takes only peers with keys")

	// ErrExposed is returned for an address that strangers can reach where no keys
	// are used: pair the two hosts, or use loopback.
	ErrExposed = errors.New("keys: strangers can reach the address")

	// ErrPeerExists is returned when a name or a key that is paired already
	// would be paired with another: revoke it first.
	ErrPeerExists = errors.New("keys: peer exists")

	// ErrRevoked is why a connection ends whose peer was taken out of the peers
	// file.
	ErrRevoked = errors.New("keys: revoked")

	// ErrLocked is returned when somebody else has been changing the directory
	// for seconds: wait for it, or end it.
	ErrLocked = errors.New("keys: locked")

	// ErrBadKey is returned for a public key, or a peer's name, that is mistyped.
	ErrBadKey = errors.New("keys: bad key")

	// ErrBadFile is returned for a file whose content is not what it should be.
	ErrBadFile = errors.New("keys: bad file")

	// ErrPermissions is returned for a file or directory that others can write,
	// a private key that others can read, and what this process may not read.
	ErrPermissions = errors.New("keys: unsafe permissions")
)

// UnknownKeyError is why a key is not admitted that was never a peer's, as far as is known.
// It wraps ErrUnknownPeer.
type UnknownKeyError struct {
	Key  PublicKey // that the other end has proven to hold
	File string    // of peers, in which it is not
}

// Error implements error.
func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf("%v: key %s is not in %s", ErrUnknownPeer, e.Key.Short(), e.File)
}

// Unwrap returns ErrUnknownPeer.
func (e *UnknownKeyError) Unwrap() error { return ErrUnknownPeer }

// TakenError is why a peer cannot be added: its name or its key is another one's. It
// wraps ErrPeerExists.
type TakenError struct {
	Wanted Peer // that was to be added
	Taken  Peer // that has its name, or its key
}

// Error implements error.
func (e *TakenError) Error() string {
	if e.Taken.Name == e.Wanted.Name {
		return fmt.Sprintf("%v: %s is paired with another key, %s: give another host another name, or take that peer out where it is the same host with a new key",
			ErrPeerExists, e.Taken.Name, e.Taken.Key.Short())
	}
	return fmt.Sprintf("%v: the key %s is paired as %s already: there is nothing to do, or take that peer out to give it another name",
		ErrPeerExists, e.Taken.Key.Short(), e.Taken.Name)
}

// Unwrap returns ErrPeerExists.
func (e *TakenError) Unwrap() error { return ErrPeerExists }
