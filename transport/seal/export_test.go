package seal

import "encoding/hex"

// KeyFrames is how many frames one key seals.
const KeyFrames = keyFrames

// MaxFrames is how many frames a lane has.
const MaxFrames = maxFrames

// SetFrame makes frame the next one, under the key in use.
func (x *Sealer) SetFrame(frame uint64) { x.d.setFrame(frame) }

// SetFrame makes frame the next one, under the key in use.
func (x *Opener) SetFrame(frame uint64) { x.d.setFrame(frame) }

func (d *direction) setFrame(frame uint64) {
	d.frame, d.limit = frame, max(d.limit, frame+1)
}

// Traffic is the secret of the key in use, and its iv, in hex.
func (x *Sealer) Traffic() (secret, iv string) {
	return hex.EncodeToString(x.d.next[:]), hex.EncodeToString(x.d.iv[:])
}

// Suites returns the names of all suites, the default first.
func Suites() []string {
	return []string{AES128GCM.String(), AES256GCM.String(), Clear.String()}
}

// ParseSuite returns the suite of a name of Suites.
func ParseSuite(name string) (Suite, error) {
	for s := AES128GCM; s <= Clear; s++ {
		if s.String() == name {
			return s, nil
		}
	}
	return 0, invalid("unknown suite %q, this build has %v", name, Suites())
}

// NewSecret returns a secret that the two ends share by other means. The bytes
// are copied; they must be unpredictable and used for one connection only.
func NewSecret(b [SecretSize]byte) *Secret { return &Secret{bytes: b} }
