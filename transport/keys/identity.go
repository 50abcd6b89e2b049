package keys

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
)

// Identity is this host's key pair. It is immutable and may be used concurrently.
// It prints as its public key.
type Identity struct{ private ed25519.PrivateKey }

const pemType = "PRIVATE KEY" // PKCS #8

// Public is the key by which peers know this host.
func (id *Identity) Public() PublicKey {
	return PublicKey(id.private[ed25519.PrivateKeySize-ed25519.PublicKeySize:])
}

// String returns the public key.
func (id *Identity) String() string { return id.Public().String() }

// GoString returns the public key.
func (id *Identity) GoString() string { return id.String() }

// Init makes a new identity and its file in dir, which is made where there is
// none. With replace it takes the place of the one that is there: every peer then
// has to pair with this host again. The context bounds the wait for another change
// of the directory. Errors: ErrIdentityExists, ErrPermissions, ErrLocked, the
// context's, what the file system said.
func Init(ctx context.Context, dir string, replace bool) (*Identity, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("keys: make a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, fmt.Errorf("keys: encode the key: %w", err)
	}
	defer clear(der)
	content := pem.EncodeToMemory(&pem.Block{Type: pemType, Bytes: der})
	defer clear(content)
	path := filepath.Join(dir, IdentityFile)
	err = change(ctx, dir, func() error { return writeFile(path, content, replace) })
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%w: %s: another one would make every peer pair again", ErrIdentityExists, path)
	}
	if err != nil {
		return nil, err
	}
	return &Identity{private}, nil
}

// LoadIdentity reads the identity of dir. Errors: ErrNoIdentity, ErrPermissions,
// ErrBadFile, what the file system said.
func LoadIdentity(dir string) (*Identity, error) {
	path := filepath.Join(dir, IdentityFile)
	b, err := readFile(path, maxIdentity, true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s", ErrNoIdentity, dir)
	}
	if err != nil {
		return nil, err
	}
	defer clear(b)
	private, err := parseIdentity(b)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrBadFile, path, err)
	}
	return &Identity{private}, nil
}

// parseIdentity reads the content of an identity file.
func parseIdentity(b []byte) (ed25519.PrivateKey, error) {
	block, rest := pem.Decode(b)
	if block == nil || block.Type != pemType || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errors.New("want one PEM block of a private key: restore the file, or make another key in its place")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse the private key: %w", err)
	}
	private, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("a key of type %T, want Ed25519", key)
	}
	return private, nil
}
