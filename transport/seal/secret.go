package seal

import (
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"fmt"

	"pdlink/transport/wire"
)

// SecretSize is the length of a connection's secret in bytes.
const SecretSize = 32

// ProofSize is the length of a lane's proof in bytes.
const ProofSize = wire.ProofSize

// Names in the key schedule (section 10.3). RFC 5705 asks for the first word of
// the exporter's label where the label is not registered.
const (
	exporterLabel = "EXPERIMENTAL pdlink/1 lanes"
	infoTraffic   = "pdlink/1 traffic"
	infoProof     = "pdlink/1 proof"
	infoKey       = "pdlink/1 key"
	infoIV        = "pdlink/1 iv"
	infoNext      = "pdlink/1 next"
)

// Exporter returns n bytes that only the two ends of a TLS session know and that
// depend on the label and the context (RFC 5705, RFC 8446 section 7.5):
// tls.ConnectionState.ExportKeyingMaterial.
type Exporter func(label string, context []byte, n int) ([]byte, error)

// Secret is what the two ends of one connection share. It may be used
// concurrently, but not during or after Erase. It prints as a word.
type Secret struct{ bytes [SecretSize]byte }

// Export returns the secret of the connection whose control channel is the TLS
// session behind export; token is the one that the connection agreed on, 16
// bytes.
func Export(export Exporter, token [16]byte) (*Secret, error) {
	b, err := export(exporterLabel, token[:], SecretSize)
	if err != nil {
		return nil, fmt.Errorf("seal: export keys from the TLS session: %w", err)
	}
	if len(b) != SecretSize {
		return nil, invalid("exporter gave %d bytes, want %d", len(b), SecretSize)
	}
	s := &Secret{}
	copy(s.bytes[:], b)
	clear(b)
	return s, nil
}

// Erase overwrites the secret. What was derived from it stays.
func (s *Secret) Erase() { clear(s.bytes[:]) }

// String hides the bytes.
func (s *Secret) String() string { return "seal.Secret" }

// GoString hides the bytes.
func (s *Secret) GoString() string { return s.String() }

// Proof returns the bytes by which the end that seals in direction d of a lane
// shows that it has the secret, and that it uses suite (section 10.2). lane is
// from 0 to wire.MaxLanes-1.
func (s *Secret) Proof(suite Suite, lane int, d Direction) ([ProofSize]byte, error) {
	var proof [ProofSize]byte
	err := s.derive(proof[:], infoProof, suite, lane, d)
	return proof, err
}

// CheckProof compares a proof with the right one, in constant time. A wrong one
// gives ErrForged: the lane is somebody else's, or the other end uses another
// suite.
func (s *Secret) CheckProof(proof []byte, suite Suite, lane int, d Direction) error {
	want, err := s.Proof(suite, lane, d)
	if err != nil {
		return err
	}
	if subtle.ConstantTimeCompare(want[:], proof) != 1 {
		return forged("proof of lane %d", lane)
	}
	return nil
}

// derive fills out, at most 255 hashes, with bytes for one use of one direction
// of one lane.
func (s *Secret) derive(out []byte, use string, suite Suite, lane int, d Direction) error {
	if suite > Clear || d > ToClient || lane < 0 || lane >= wire.MaxLanes {
		return invalid("suite %v, lane %d, direction %d", suite, lane, d)
	}
	info := make([]byte, 0, 64)
	info = append(info, use...)
	info = append(info, 0)
	info = append(info, suite.String()...)
	info = append(info, 0)
	info = binary.LittleEndian.AppendUint16(info, uint16(lane))
	info = append(info, byte(d))
	return expand(out, s.bytes[:], string(info))
}

// expand is HKDF-Expand with SHA-256 (RFC 5869, section 2.3) of a secret that is
// a uniform key already, so that nothing has to be extracted.
func expand(out, secret []byte, info string) error {
	b, err := hkdf.Expand(sha256.New, secret, info, len(out))
	if err != nil {
		return fmt.Errorf("seal: derive keys: %w", err)
	}
	copy(out, b)
	clear(b)
	return nil
}
